// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	maxRunning = 4
	keptTasks  = 12
	taskTime   = 12 * time.Hour
)

// tasks contains the operations started on a page that can take longer than a request, such as scans, backups and jobs.
// They continue when the page is closed. They are canceled when the node stops, and after taskTime.
type tasks struct {
	server *Server
	ctx    context.Context //nolint:containedctx // ends all tasks
	close  context.CancelFunc

	mu   sync.Mutex // guards the fields below
	all  []*task    // newest first
	last int
}

type task struct {
	ID, Title, Node, Principal string
	StartedAt, EndedAt         time.Time
	Progress                   *pb.Progress
	Outcome                    string   // text of the result
	Failure                    *failure // nil unless the task has failed
	Link                       string   // address of the page with the result; may be empty
	Set                        string   // name of the backup that is verified; may be empty
	Partial                    string   // possible effect of a stopped operation; empty if it changes nothing

	cancel context.CancelFunc
}

func (t task) Running() bool { return t.EndedAt.IsZero() }

// Percent returns the progress as a percentage. It returns 0 if the progress is unknown.
func (t task) Percent() int { return percent(t.Progress.GetDoneBytes(), t.Progress.GetTotalBytes()) }

func (t task) Duration() time.Duration {
	if t.Running() {
		return time.Since(t.StartedAt)
	}
	return t.EndedAt.Sub(t.StartedAt)
}

func newTasks(s *Server) *tasks {
	t := &tasks{server: s}
	t.ctx, t.close = context.WithCancel(context.Background())
	return t
}

func (t *tasks) list() []task {
	t.mu.Lock()
	defer t.mu.Unlock()
	list := make([]task, 0, len(t.all))
	for _, one := range t.all {
		list = append(list, *one)
	}
	return list
}

func (t *tasks) stop(id string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, one := range t.all {
		if one.ID == id && one.Running() {
			one.cancel()
			return nil
		}
	}
	return invalid("The operation is already finished.")
}

// unsuccessful is the error of an operation that returned a negative result.
type unsuccessful struct{ title, text string }

func (e *unsuccessful) Error() string { return e.text }

type operation func(ctx context.Context, v *View, report func(*pb.Progress)) (string, error)

// begin starts a task. All tasks require the operate right, which begin checks first.
func (v *View) begin(ctx context.Context, label task, do operation) error { //nolint:contextcheck // it outlives ctx
	if _, err := pb.NewMaintenanceServiceClient(v.Own()).GetSettings(ctx, &pb.GetSettingsRequest{}); err != nil {
		return err
	}
	t := v.server.tasks
	t.mu.Lock()
	defer t.mu.Unlock()
	running := 0
	for _, one := range t.all {
		if one.Running() {
			running++
		}
	}
	if running >= maxRunning {
		return invalid(fmt.Sprintf("The console already runs %d operations: wait until one is finished.", maxRunning))
	}
	t.last++
	one := &label
	one.ID, one.Principal, one.StartedAt = strconv.Itoa(t.last), v.Principal, time.Now()
	life, cancel := context.WithTimeout(t.ctx, taskTime)
	one.cancel = cancel
	t.all = slices.Insert(t.all, 0, one)
	for i := len(t.all) - 1; i >= 0 && len(t.all) > keptTasks; i-- {
		if !t.all[i].Running() {
			t.all = slices.Delete(t.all, i, i+1)
		}
	}
	key, leave := v.server.o.Link.Enter(v.from)
	own := &View{
		Query: v.Query, Form: v.Form, Principal: v.Principal, server: v.server, from: v.from, token: v.token, key: key,
	}
	go func() {
		defer leave()
		defer cancel()
		outcome, err := do(life, own, func(p *pb.Progress) {
			t.mu.Lock()
			defer t.mu.Unlock()
			one.Progress = p
		})
		t.mu.Lock()
		defer t.mu.Unlock()
		one.EndedAt, one.Outcome = time.Now(), outcome
		if err != nil {
			f := describe(err)
			var bad *unsuccessful
			if errors.As(err, &bad) {
				f = failure{Title: bad.title, Text: bad.text}
			}
			if errors.Is(life.Err(), context.Canceled) {
				f = failure{Title: "Canceled", Text: cmp.Or(one.Partial, "Nothing was changed.")}
			}
			one.Failure = &f
		}
	}()
	return nil
}

// beginOnNode is like begin, but the operation runs on the node named in the request.
func (v *View) beginOnNode(
	ctx context.Context, what task,
	do func(ctx context.Context, m pb.MaintenanceServiceClient, report func(*pb.Progress)) (string, error),
) error {
	n, _, err := v.nodeAndMaintenance(ctx)
	if err != nil {
		return err
	}
	what.Node = n.Name()
	return v.begin(ctx, what, func(ctx context.Context, v *View, report func(*pb.Progress)) (string, error) {
		m, err := v.maintenance(ctx)
		if err != nil {
			return "", err
		}
		return do(ctx, m, report)
	})
}

type progressed[R any] interface {
	*R
	GetProgress() *pb.Progress
}

// result reads the responses of an operation until a response contains the result. It passes the progress in each
// response to report.
func result[R any, P progressed[R], T any](
	in interface{ Recv() (*R, error) }, report func(*pb.Progress), get func(P) *T,
) (*T, error) {
	for {
		r, err := in.Recv()
		if err != nil {
			return nil, fmt.Errorf("read response: %w", err)
		}
		report(P(r).GetProgress())
		if out := get(r); out != nil {
			return out, nil
		}
	}
}
