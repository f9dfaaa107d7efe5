// SPDX-License-Identifier: Apache-2.0

package message

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"text/template"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

const formatHelp = `is printed with a Go template (text/template) that uses the fields of
--output json, such as {{.sequence}}, {{.body}} and {{.properties.region}}. {{json .properties}}, {{hex .body}} and
{{base64 .body}} encode a value. A missing property is an error, except with {{index .properties "region"}}.`

type formatter struct{ template *template.Template }

func newFormatter(env *cli.Env, text string) (*formatter, error) {
	if text == "" {
		return nil, nil //nolint:nilnil // no template
	}
	if env.Print.JSON() {
		return nil, cli.Usage("--format and --output json are mutually exclusive")
	}
	t, err := template.New("--format").Funcs(template.FuncMap{
		"json": func(v any) (string, error) {
			var b bytes.Buffer
			enc := json.NewEncoder(&b)
			enc.SetEscapeHTML(false)
			err := enc.Encode(v)
			return string(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), err
		},
		"hex":    func(v any) string { return hex.EncodeToString(fmt.Append(nil, v)) },
		"base64": func(v any) string { return base64.StdEncoding.EncodeToString(fmt.Append(nil, v)) },
	}).Option("missingkey=error").Parse(text)
	if err != nil {
		return nil, cli.Usage("%v", err)
	}
	return &formatter{t}, nil
}

// fields returns the data for a template: the fields of --output json and the unencoded body. A field that the message
// does not have is an empty string, or an empty map for the properties.
func fields(f from, m *client.Stored) (map[string]any, error) {
	encoded, err := json.Marshal(f.message(*m, false))
	if err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	all := map[string]any{
		"typed_properties": map[string]any{},
	}
	for _, name := range [...]string{
		"message_id", "correlation_id", "reply_to", "content_type", "subject", "group", "priority", "expires_at",
		"deliver_at", "partition",
	} {
		all[name] = ""
	}
	dec := json.NewDecoder(bytes.NewReader(encoded))
	dec.UseNumber() // a sequence can have more digits than a float64
	if err := dec.Decode(&all); err != nil {
		return nil, fmt.Errorf("encode a message: %w", err)
	}
	all["body"] = string(m.Body)
	properties := make(map[string]string, len(m.Properties)) // not any: index returns "" for a missing key
	maps.Copy(properties, m.Properties)
	all["properties"] = properties
	return all, nil
}

func (f *formatter) print(env *cli.Env, origin from, m *client.Stored) error {
	all, err := fields(origin, m)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := f.template.Execute(&b, all); err != nil {
		return fmt.Errorf("print message %d (not acknowledged): %w; the fields are those of --output json",
			m.Sequence, err)
	}
	b.WriteByte('\n')
	return env.Print.Raw(b.Bytes())
}
