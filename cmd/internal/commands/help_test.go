// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
)

func newRoot() *cobra.Command {
	return commands.Root(&cli.Env{Process: cli.Process{Lookup: func(string) (string, bool) { return "", false }}})
}

// Every command has a short and a long description and described flags. Each runnable command has examples that run
// the command.
func TestHelp(t *testing.T) {
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		require.NotEmpty(t, cmd.Short, path)
		require.NotContains(t, strings.TrimSuffix(cmd.Short, "…"), "\n", path)
		require.False(t, strings.HasSuffix(cmd.Short, "."), "%s: the short text is not a sentence", path)
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			require.NotEmpty(t, f.Usage, "%s --%s", path, f.Name)
		})
		for line := range strings.Lines(cmd.Long) {
			require.LessOrEqual(t, len(line), 81, "%s: the long text has a line of more than 80 columns", path)
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		if cmd.HasSubCommands() {
			return
		}
		require.NotEmpty(t, cmd.Long, "%s has no long text", path)
		require.NotEqual(t, cmd.Short, strings.TrimSuffix(cmd.Long, "."), "%s: the long text adds nothing", path)
		require.NotEmpty(t, cmd.Example, path)
		require.Contains(t, cmd.Example, path, path)
	}
	walk(newRoot())
	require.Contains(t, clitest.CLI{T: t}.OK("--help"), "lockstep demo")
}

// The usage line of a command shows a flag without brackets only if the flag is required.
func TestFlagsInUsageLine(t *testing.T) {
	flag := regexp.MustCompile(`^--([a-z-]+)`)
	seen := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		for word := range strings.FieldsSeq(cmd.Use) {
			if m := flag.FindStringSubmatch(word); m != nil && !strings.HasSuffix(word, ")") {
				seen++
				f := cmd.Flag(m[1])
				require.NotNil(t, f, cmd.Use)
				require.NotEmpty(t, f.Annotations[cobra.BashCompOneRequiredFlag], cmd.Use)
			}
		}
	}
	walk(newRoot())
	require.Greater(t, seen, 3)
}

// The commands and flags of each example exist, and accept the given arguments.
func TestExamplesParse(t *testing.T) {
	seen := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		for line := range strings.Lines(cmd.Example) {
			for _, args := range commandsIn(t, line) {
				seen++
				require.NoError(t, parses(args), "%s has the example %s", cmd.CommandPath(), strings.TrimSpace(line))
			}
		}
	}
	walk(newRoot())
	require.Greater(t, seen, 100)
}

// parses returns an error if a command line is invalid. It does not run the command.
func parses(args []string) error {
	cmd, rest, err := newRoot().Find(args)
	if err != nil {
		return err
	}
	if cmd.HasSubCommands() && cmd.Name() == "lockstep" {
		return fmt.Errorf("%v names no command", args)
	}
	if cmd.DisableFlagParsing {
		return nil
	}
	if err := cmd.ParseFlags(rest); err != nil {
		return err
	}
	if help, err := cmd.Flags().GetBool("help"); err == nil && help {
		return nil
	}
	if err := cmd.ValidateArgs(cmd.Flags().Args()); err != nil {
		return err
	}
	if err := cmd.ValidateRequiredFlags(); err != nil {
		return err
	}
	return cmd.ValidateFlagGroups()
}

// commandsIn returns the lockstep commands in a shell command line.
func commandsIn(t *testing.T, line string) (all [][]string) {
	t.Helper()
	var words []string
	inside := false
	end := func() {
		if inside {
			all = append(all, words)
		}
		words, inside = nil, false
	}
	before := ""
	for _, word := range shellWords(line) {
		switch {
		case word == "|", word == "&&", word == ";", word == "||", word == "&", word == "\n":
			end()
		case strings.HasPrefix(word, "#"):
			end()
			return all
		case word == "lockstep" && !inside && before != "-u": // sudo -u lockstep
			inside = true
		case strings.HasPrefix(word, "<"), strings.HasPrefix(word, ">"), strings.HasPrefix(word, "2>"):
			end() // a file, which is not an argument
		case inside:
			words = append(words, word)
		}
		before = word
	}
	end()
	return all
}

// shellWords splits a line like a shell, with the features used in examples. Operators are separate words. The content
// of $(…) is one word.
func shellWords(line string) (words []string) {
	var word strings.Builder
	begun, quote, depth := false, rune(0), 0
	flush := func() {
		if begun {
			words = append(words, word.String())
		}
		word.Reset()
		begun = false
	}
	for i, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '(' && strings.HasSuffix(line[:i], "$"), depth > 0 && r == '(':
			depth++
		case depth > 0 && r == ')':
			depth--
		case depth > 0:
		case r == '\'' || r == '"':
			quote, begun = r, true
		case r == ' ' || r == '\t' || r == '\n':
			flush()
		case r == '|' || r == ';' || r == '&':
			flush()
			if n := len(words); n > 0 && words[n-1] == string(r) && strings.HasSuffix(line[:i], string(r)) {
				words[n-1] += string(r)
			} else {
				words = append(words, string(r))
			}
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	flush()
	return words
}

// The parser of the examples detects errors in them.
func TestShellWords(t *testing.T) {
	for line, want := range map[string][][]string{
		"lockstep status":                                   {{"status"}},
		"  lockstep publish q 'a b' | head -1":              {{"publish", "q", "a b"}},
		"x=1 lockstep queue list && lockstep status":        {{"queue", "list"}, {"status"}},
		"lockstep store backup # comment lockstep x":        {{"store", "backup"}},
		"date | lockstep publish q < file":                  {{"publish", "q"}},
		"sudo -u me lockstep switchover --from $(hostname)": {{"switchover", "--from", "$"}},
	} {
		require.Equal(t, want, commandsIn(t, line), line)
	}
	require.Error(t, parses([]string{"statsu"}))
	require.Error(t, parses([]string{"status", "--nonsense"}))
	require.Error(t, parses([]string{"queue", "show", "a", "b"}))
	require.Error(t, parses([]string{"nonsense", "list"}))
	require.NoError(t, parses([]string{"queue", "show", "a"}))
}
