// SPDX-License-Identifier: Apache-2.0

// Command manual writes what a package has beside the program, from its commands: a manual page of each in
// DIR/man1, and completions for bash, zsh and fish in DIR. The bytes depend on the commands, VERSION and
// SOURCE_DATE_EPOCH only. Usage:
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

// run writes the pages and the completions; epoch is the date of the pages in seconds since 1970.
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
	if err := os.MkdirAll(pages, 0o755); err != nil { //nolint:gosec // read by everybody
		return fmt.Errorf("make the directory of the pages: %w", err)
	}

	// Nothing of this machine may be in the pages: the commands see no environment, and defaults are of no TMPDIR.
	if err := os.Unsetenv("TMPDIR"); err != nil {
		return fmt.Errorf("forget TMPDIR: %w", err)
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

// completions writes the files that shells load when they first complete the command.
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

// prepare makes the long texts of a command and those below it what the generator, which reads Markdown, takes for the
// same: indented lines are examples and keep their lines, and what looks like a tag of HTML is text.
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
