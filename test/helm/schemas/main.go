// SPDX-License-Identifier: Apache-2.0

// Command schemas converts the OpenAPI description of Kubernetes to JSON schemas, with which kubeconform validates
// manifests. It writes a file for each kind, KIND-GROUP-VERSION.json in lower case, which refers to a file with all
// types. GROUP is the part of the group name before the first dot; it is omitted for the core group. The schemas
// reject fields that are not part of the API. Usage:
//
//	go run ./test/helm/schemas SWAGGER.json DIR
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "schemas:", err)
		os.Exit(1)
	}
}

type kind struct {
	Group   string `json:"group"`
	Kind    string `json:"kind"`
	Version string `json:"version"`
}

func run(args []string) error {
	if len(args) != 2 {
		return errors.New("usage: schemas SWAGGER.json DIR")
	}
	data, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("read the description: %w", err)
	}
	var api struct {
		Definitions map[string]map[string]any `json:"definitions"`
	}
	if err := json.Unmarshal(data, &api); err != nil {
		return fmt.Errorf("read %s: %w", args[0], err)
	}
	kinds := 0
	for name, definition := range api.Definitions {
		strict(definition)
		var of []kind
		if text, err := json.Marshal(definition["x-kubernetes-group-version-kind"]); err != nil ||
			json.Unmarshal(text, &of) != nil {
			return fmt.Errorf("%s: invalid list of kinds", name)
		}
		for _, k := range of {
			group, _, _ := strings.Cut(k.Group, ".")
			parts := []string{k.Kind, group, k.Version}
			if group == "" {
				parts = []string{k.Kind, k.Version}
			}
			file := strings.ToLower(strings.Join(parts, "-")) + ".json"
			if err := write(filepath.Join(args[1], file), map[string]any{
				"$ref": "_definitions.json#/definitions/" + name,
			}); err != nil {
				return err
			}
			kinds++
		}
	}
	if kinds == 0 {
		return fmt.Errorf("%s contains no kinds", args[0])
	}
	return write(filepath.Join(args[1], "_definitions.json"), map[string]any{"definitions": api.Definitions})
}

// strict changes a schema so that it rejects unknown fields, and accepts a number or a string where the API does.
func strict(schema map[string]any) {
	if properties, ok := schema["properties"].(map[string]any); ok {
		if _, ok := schema["additionalProperties"]; !ok {
			schema["additionalProperties"] = false
		}
		for _, p := range properties {
			if p, ok := p.(map[string]any); ok {
				strict(p)
			}
		}
	}
	if schema["format"] == "int-or-string" {
		schema["type"] = []string{"string", "integer"}
		delete(schema, "format")
	}
	for _, key := range []string{"items", "additionalProperties"} {
		if s, ok := schema[key].(map[string]any); ok {
			strict(s)
		}
	}
}

func write(path string, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}
