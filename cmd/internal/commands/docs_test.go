// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

const top = "../../.."

var (
	// mention matches a command line in a text, up to the end of the sentence, the line or the quotation.
	mention = regexp.MustCompile("(?:^|[^-\\w./])(`?)lockstep ((?:[^`;\n<.,:)]|[.,:][^\\s`'\"])+)")
	// quotedValue matches a flag with a quoted value, which may contain another command.
	quotedValue = regexp.MustCompile(`( --?[a-z-]+)[ =]+('[^']*'|"[^"]*")`)
	substituted = regexp.MustCompile(`\$\([^()]*\)`)
	wrappedLine = regexp.MustCompile(`\\\n *`)
	commandName = regexp.MustCompile(`^[a-z][a-z|-]*$`)
	flagName    = regexp.MustCompile(`^[\[(]*--([a-z][a-z0-9-]*)`)
)

// checker checks the commands and flags that texts name.
type checker struct {
	root  *cobra.Command
	found int
	wrong []string
}

func newChecker() *checker {
	c := &checker{root: newRoot()}
	c.root.InitDefaultCompletionCmd() // as cobra does before it runs a command
	c.root.InitDefaultHelpCmd()
	return c
}

// check records each command and each flag in a text that does not exist. file is the source of the text.
func (c *checker) check(file, text string) {
	text = wrappedLine.ReplaceAllString(text, " ")
	text = substituted.ReplaceAllString(quotedValue.ReplaceAllString(text, "$1 x"), "x")
	for _, m := range mention.FindAllStringSubmatch(text, -1) {
		line, _, _ := strings.Cut(m[2], " lockstep ")
		line, _, _ = strings.Cut(line, "   ")
		line, _, _ = strings.Cut(line, " #")
		words := strings.Fields(line)
		if len(words) > 0 && words[0] == "lockstep" { // sudo -u lockstep lockstep …
			words = words[1:]
		}
		wrong := func(text string) { c.wrong = append(c.wrong, file+": "+strings.TrimSpace(m[0])+": "+text) }
		cmds, words := c.commands(words, m[1] != "" || strings.HasSuffix(file, ".go"), wrong)
		if len(cmds) == 0 {
			continue
		}
		c.found++
		checkFlags(cmds, words, wrong)
	}
}

// commands returns the commands that the first words name, and the other words. It returns no command if the words
// begin with none. Alternatives are separated with |. If the text is certainly a command line, another name is wrong.
func (c *checker) commands(words []string, certain bool, wrong func(string)) (cmds []*cobra.Command, rest []string) {
	level := []*cobra.Command{c.root}
	for len(words) > 0 && commandName.MatchString(words[0]) && level[0].HasSubCommands() {
		var next []*cobra.Command
		for name := range strings.SplitSeq(words[0], "|") {
			named := func(c *cobra.Command) bool { return c.Name() == name || c.HasAlias(name) }
			i := slices.IndexFunc(level[0].Commands(), named)
			switch {
			case i >= 0:
				next = append(next, level[0].Commands()[i])
			case certain || level[0] != c.root:
				wrong(level[0].CommandPath() + " has no " + name)
			}
		}
		if len(next) == 0 {
			break
		}
		level, words = next, words[1:]
		cmds = next
	}
	return cmds, words
}

// checkFlags checks that one of the commands has each long flag among the words, up to the end of the command line.
func checkFlags(cmds []*cobra.Command, words []string, wrong func(string)) {
	for _, w := range words {
		if w == "|" || w == "&&" || w == "||" || w == "&" || w == "--" {
			return
		}
		for one := range strings.SplitSeq(w, "|") {
			m := flagName.FindStringSubmatch(one)
			if len(m) < 2 || m[1] == "help" {
				continue
			}
			if !slices.ContainsFunc(cmds, func(c *cobra.Command) bool { return c.Flag(m[1]) != nil }) {
				wrong(cmds[0].CommandPath() + " has no flag --" + m[1])
			}
		}
	}
}

// Each command and each flag that the documentation, the console or a deployment file names exists.
func TestDocsNameCommands(t *testing.T) {
	c := newChecker()
	names := []string{filepath.Join(top, "README.md")}
	for _, dir := range []string{"docs", "deploy", "server/console", "proto/lockstep"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(top, dir), func(name string, _ fs.DirEntry, err error) error {
			switch filepath.Ext(name) {
			case ".md", ".html", ".yaml", ".service", ".proto":
				if filepath.Base(filepath.Dir(name)) != "decisions" {
					names = append(names, name)
				}
			}
			return err
		}))
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		require.NoError(t, err)
		c.check(name, strings.ReplaceAll(string(b), `\|`, "|"))
	}
	require.Empty(t, c.wrong)
	require.Greater(t, c.found, 500)
}

// Each command and each flag that a string of the source names exists, for example in an error or a condition.
func TestStringsNameCommands(t *testing.T) {
	c := newChecker()
	require.NoError(t, filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "test" || d.Name() == "lockstep-lab"):
			return fs.SkipDir
		case filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") || strings.HasSuffix(name, ".pb.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, s := range literals(file) {
			s = strings.ReplaceAll(s, "lockstep process", "process")
			c.check(name, regexp.MustCompile(`\n([^ \n])`).ReplaceAllString(s, " $1")) // help texts are wrapped
		}
		return nil
	}))
	require.Empty(t, c.wrong)
	require.Greater(t, c.found, 500)
}

// literals returns the strings in a Go file. A concatenation is one string, in which … replaces variable parts.
func literals(file *ast.File) (all []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BinaryExpr:
			if n.Op == token.ADD {
				all = append(all, literal(n))
				return false
			}
		case *ast.BasicLit:
			if n.Kind == token.STRING {
				all = append(all, literal(n))
			}
		}
		return true
	})
	return all
}

func literal(n ast.Expr) string {
	switch n := n.(type) {
	case *ast.BinaryExpr:
		return literal(n.X) + literal(n.Y)
	case *ast.BasicLit:
		if s, err := strconv.Unquote(n.Value); err == nil && n.Kind == token.STRING {
			return s
		}
	}
	return " … "
}

// The checks find unknown commands and flags in all kinds of texts.
func TestUnknownCommandsAreFound(t *testing.T) {
	for text, want := range map[string]int{
		"upgrade it (lockstep restart --rolling).":                             1,
		"upgrade it (lockstep restart), or --rolling":                          0,
		"`lockstep frobnicate`":                                                1,
		"run lockstep access frobnicate":                                       1,
		"`lockstep access token frobnicate`":                                   1,
		"`lockstep queue pause|resume q`, `lockstep queue pause|stop q`":       1,
		"lockstep consume q --ack-after-command 'curl --fail x' --no-such":     1,
		"lockstep serve --config a \\\n  --no-such":                            1,
		"lockstep failover --dry-run; lockstep failover --force, --no-such":    0,
		"sudo -u lockstep lockstep doctor --no-such":                           1,
		"lockstep switchover --from $(hostname) --no-such":                     1,
		"lockstep status | grep --no-such":                                     0,
		"the lockstep binary":                                                  0,
		"lockstep status --output json --addr x --watch [--tls-ca FILE|--bad]": 1,
	} {
		c := newChecker()
		c.check("x.md", text)
		require.Len(t, c.wrong, want, text)
	}
}
