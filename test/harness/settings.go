// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// SmallNodes returns settings for nodes that share a machine with a disk that may be almost full.
func SmallNodes() map[string]string {
	return map[string]string{"disk.low-watermark": "16MiB", "wal.segment-bytes": "16MiB", "memory.budget": "128MiB"}
}

// arguments returns the command line arguments of a node with these settings. If inFile is set, it writes the
// settings to the configuration file, where they can be changed between two starts.
func (n *Node) arguments(settings map[string]string, inFile bool) ([]string, error) {
	if inFile {
		err := os.WriteFile(n.ConfigFile(), []byte(yaml(settings)), 0o600)
		if err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		return []string{"serve", "--config", n.ConfigFile()}, nil
	}
	args := []string{"serve"}
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		args = append(args, "--"+strings.ReplaceAll(k, ".", "-")+"="+settings[k])
	}
	return args, nil
}

// yaml returns settings as YAML, with nested maps for dotted keys.
func yaml(settings map[string]string) string {
	var b strings.Builder
	var open []string
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		path := strings.Split(k, ".")
		common := 0
		for common < len(path)-1 && common < len(open) && path[common] == open[common] {
			common++
		}
		for depth := common; depth < len(path)-1; depth++ {
			fmt.Fprintf(&b, "%s%s:\n", strings.Repeat("  ", depth), path[depth])
		}
		open = path[:len(path)-1]
		fmt.Fprintf(&b, "%s%s: %q\n", strings.Repeat("  ", len(path)-1), path[len(path)-1], settings[k])
	}
	return b.String()
}
