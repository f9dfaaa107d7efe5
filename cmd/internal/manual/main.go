// SPDX-License-Identifier: Apache-2.0

// Command manual generates files that are packaged with the program. It writes a manual page of each command to
// DIR/man1, and completions for bash, zsh and fish to DIR. The output depends only on the commands, VERSION and
// SOURCE_DATE_EPOCH. Usage:
//
//	go run ./cmd/internal/manual DIR VERSION
package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
)

func main() {
	if err := run(os.Args[1:], os.Getenv("SOURCE_DATE_EPOCH")); err != nil {
		fmt.Fprintln(os.Stderr, "manual:", err)
		os.Exit(1)
	}
}

func run(args []string, epoch string) error {
	if len(args) != 2 {
		return errors.New("usage: manual DIR VERSION")
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	date := time.Unix(seconds, 0).UTC()
	dir := args[0]
	pages := filepath.Join(dir, "man1")
	if err := os.MkdirAll(pages, 0o755); err != nil { //nolint:gosec // readable by all users
		return fmt.Errorf("create the directory of the pages: %w", err)
	}

	// The pages must not depend on this machine: the commands get an empty environment, and TMPDIR is unset for the
	// defaults.
	if err := os.Unsetenv("TMPDIR"); err != nil {
		return fmt.Errorf("unset TMPDIR: %w", err)
	}
	root := commands.Root(&cli.Env{Process: cli.Process{
		Lookup: func(string) (string, bool) { return "", false }, Version: args[1],
	}})
	root.DisableAutoGenTag = true
	root.InitDefaultCompletionCmd()
	prepare(root)
	if err := completions(root, dir); err != nil {
		return err
	}
	header := &doc.GenManHeader{Section: "1", Date: &date, Source: "lockstep " + args[1], Manual: "Lockstep"}
	if err := doc.GenManTree(root, header, pages); err != nil {
		return fmt.Errorf("write the manual pages: %w", err)
	}
	return nil
}

func completions(root *cobra.Command, dir string) error {
	if err := root.GenBashCompletionFileV2(filepath.Join(dir, "lockstep.bash"), true); err != nil {
		return fmt.Errorf("write the completion for bash: %w", err)
	}
	if err := root.GenZshCompletionFile(filepath.Join(dir, "_lockstep")); err != nil {
		return fmt.Errorf("write the completion for zsh: %w", err)
	}
	if err := root.GenFishCompletionFile(filepath.Join(dir, "lockstep.fish"), true); err != nil {
		return fmt.Errorf("write the completion for fish: %w", err)
	}
	return nil
}

// prepare converts the help texts of a command and its subcommands to Markdown for the generator. Indented lines are
// examples and keep their line breaks. HTML-like tags are escaped.
func prepare(cmd *cobra.Command) {
	cmd.Long = markdown(cmd.Long)
	cmd.Short = markdown(cmd.Short)
	for _, sub := range cmd.Commands() {
		prepare(sub)
	}
}

func markdown(text string) string {
	var b strings.Builder
	indented := false
	for line := range strings.Lines(text) {
		inside := strings.HasPrefix(line, "  ")
		switch {
		case inside && !indented:
			b.WriteString("\n    ")
		case inside:
			b.WriteString("    ")
		case indented && strings.TrimSpace(line) != "":
			b.WriteString("\n")
		}
		if !inside {
			line = strings.NewReplacer("<", `\<`, "*", `\*`, "_", `\_`).Replace(line)
		}
		b.WriteString(line)
		indented = inside
	}
	return b.String()
}
