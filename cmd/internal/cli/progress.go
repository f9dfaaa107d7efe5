// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/rewrite"
)

// WithProgress runs fn with a progress bar. The first Ctrl-C cancels the operation safely and waits. A second
// Ctrl-C exits the program immediately, which is safe as well.
func (env *Env) WithProgress(ctx context.Context, label string, fn func(show func(progress.Step)) error) error {
	d := progress.New(env.Stderr, output.IsTerminal(env.Stderr))
	bar := d.Bar(label)
	stop := context.AfterFunc(ctx, func() { d.Line("Stopping safely; press Ctrl-C again to exit immediately.") })
	err := fn(func(s progress.Step) { d.Set(bar, s) })
	stop()
	switch {
	case err == nil:
		d.Clear()
		return nil
	case ctx.Err() != nil && isCanceled(err):
		d.End(bar, "canceled")
		d.Close()
		return errors.New("canceled, no changes made")
	}
	d.End(bar, "failed")
	d.Close()
	return err
}

func isCanceled(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, admin.ErrCanceled) || errors.Is(err, rewrite.ErrCanceled)
}

// ShowCheckpoint returns a function that shows the progress of copying and checking a checkpoint.
func ShowCheckpoint(show func(progress.Step)) func(checkpoint.Progress) {
	return func(p checkpoint.Progress) {
		if p.Phase == "check" {
			show(progress.Step{Phase: fmt.Sprintf("verify, page %s of %s", output.Count(p.Pages), output.Count(p.TotalPages))})
			return
		}
		show(progress.Step{Phase: p.Phase, Done: p.Bytes, Total: p.TotalBytes})
	}
}
