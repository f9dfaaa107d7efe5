// SPDX-License-Identifier: Apache-2.0

// Package cli is what the commands of `lockstep` share: the root command with the global flags, clients of the nodes
// that --addr names, usage errors, and questions at a terminal.
//
// Each group of commands is a package below this one, with a function Command that takes an Env. Package commands puts
// them together. To add a command, write it in the package of its group; to add a group, make a package and name it in
// package commands.
package cli

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/out"
)

// Process is what the process was started with.
type Process struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Environ        []string
	Lookup         func(string) (string, bool)
	Terminal       func() bool // tells whether a person can be asked; nil: looks at Stdin
	Version        string      // of this program
}

// Env is what a command runs in: the process, and what the global flags say. The flags are parsed before a command
// runs, and not before it is made.
type Env struct {
	Process
	// Print prints the results of the command, in the form that --output says.
	Print *out.Printer
	// Timeout bounds a command that asks one question.
	Timeout time.Duration

	flags      flagValues
	connection *Connection // once it is known
	output     string
	patient    bool // --timeout was given: wait so long, whatever is wrong
	started    bool // a command began: what fails from now on is no wrong usage
}

// Errors that decide over the exit code, or that several commands return.
var (
	// ErrUsage is returned when the command line makes no sense; the exit code is 2.
	ErrUsage = errors.New("wrong usage")
	// ErrNotMeant is returned when a person was asked whether it was meant and did not say so.
	ErrNotMeant = errors.New("nothing was done")
	// ErrNotConfirmed is returned when a command has only said what it would do.
	ErrNotConfirmed = errors.New("nothing was done; run it again with --yes to do it")
)

// Usage makes an error with exit code 2.
func Usage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUsage, fmt.Sprintf(format, args...))
}
