// SPDX-License-Identifier: Apache-2.0

// Package cli implements the parts shared by all `lockstep` commands: the root command with the global flags, clients
// of the nodes in --addr, usage errors, and confirmation prompts.
//
// Each group of commands is a package below this one, with a function Command that takes an Env. Package commands
// assembles them. To add a group, create a package and list it in package commands.
package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// Process contains the standard streams and the environment of a process.
type Process struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Environ        []string
	Lookup         func(string) (string, bool)
	Terminal       func() bool // reports whether an operator can be prompted; nil: checks Stdin
	Version        string      // version of this program
}

// Env is the environment of the commands. It is passed to the commands when they are created, and is filled from
// the flags before a command runs.
type Env struct {
	Process
	// Print prints results in the --output format.
	Print *output.Printer
	// Timeout is the value of --timeout, the time limit for the requests of most commands.
	Timeout time.Duration

	flags          flagValues
	connection     *Connection // cached
	output         string
	waitsForServer bool // --timeout was set: wait that long regardless of the cause
	started        bool // a command has started: later failures are not usage errors
}

// Errors that determine the exit code, or that several commands return.
var (
	// ErrUsage matches errors of an invalid command line; the exit code is 2.
	ErrUsage = errors.New("invalid usage")
	// ErrNotConfirmed is returned when the operator did not confirm a prompt.
	ErrNotConfirmed = errors.New("aborted, no changes made")
	// ErrNeedsYes is returned when a command only printed its plan, because --yes was not given.
	ErrNeedsYes = errors.New("no changes made; to apply them, add --yes")
)

type usageError struct{ error }

func (usageError) Is(target error) bool { return target == ErrUsage }
func (e usageError) Unwrap() error      { return e.error }

// Usage returns an error that matches ErrUsage.
func Usage(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

type hintedError struct {
	error
	hint string
}

func (e *hintedError) Unwrap() error { return e.error }

// WithHint adds advice, which Run prints on a separate line.
func WithHint(err error, format string, args ...any) error {
	return &hintedError{err, fmt.Sprintf(format, args...)}
}
