// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	auditKept  = 200                    // maximum number of records shown
	auditPause = 500 * time.Millisecond // minimum time between two updates of the page
)

func auditPage() Page {
	return Page{
		Path: "/audit", Title: "Audit", Key: "u", Right: "audit", Template: "audit", Live: true, Load: loadAudit,
		Follow: followAudit,
	}
}

type auditView struct {
	Records           []*pb.AuditRecord // newest first
	Missed            uint64
	Principal, Method string
	Node              string
}

func (*auditView) Result(r *pb.AuditRecord) label {
	switch r.GetOutcome() {
	case pb.AuditOutcome_AUDIT_OUTCOME_DONE:
		return label{"done", "good"}
	case pb.AuditOutcome_AUDIT_OUTCOME_REFUSED:
		return label{"refused", "bad"}
	case pb.AuditOutcome_AUDIT_OUTCOME_FAILED:
		return label{"failed", "warn"}
	default:
		return label{"unknown", ""}
	}
}

// Call splits the method of a record into parts. The browser may break a line between the parts.
func (*auditView) Call(r *pb.AuditRecord) []string {
	return strings.SplitAfterN(strings.TrimPrefix(r.GetMethod(), "lockstep.v1."), "/", 2)
}

func glob(text string) string {
	text = strings.TrimSpace(text)
	if text == "" || strings.Contains(text, "*") {
		return text
	}
	return "*" + text + "*"
}

func (v *View) auditRequest(follow bool) *pb.TailAuditRequest {
	return &pb.TailAuditRequest{
		Last: auditKept, Follow: follow, Principal: glob(v.Get("principal")), Method: glob(v.Get("method")),
	}
}

func (v *View) auditView() *auditView {
	return &auditView{Principal: v.Get("principal"), Method: v.Get("method"), Node: v.server.o.Node}
}

func (d *auditView) add(r *pb.TailAuditResponse) {
	fresh := slices.Clone(r.GetRecords())
	slices.Reverse(fresh)
	d.Records = slices.Concat(fresh, d.Records)
	d.Records = d.Records[:min(len(d.Records), auditKept)]
	d.Missed += r.GetMissed()
}

func loadAudit(ctx context.Context, v *View) (any, error) {
	in, err := pb.NewAuditServiceClient(v.Own()).TailAudit(ctx, v.auditRequest(false))
	if err != nil {
		return nil, err
	}
	d := v.auditView()
	for {
		r, err := in.Recv()
		if errors.Is(err, io.EOF) {
			return d, nil
		}
		if err != nil {
			return nil, err //nolint:wrapcheck // a status is shown
		}
		d.add(r)
	}
}

// followAudit shows new records.
func followAudit(ctx context.Context, v *View, show func(any)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	in, err := pb.NewAuditServiceClient(v.Own()).TailAudit(ctx, v.auditRequest(true))
	if err != nil {
		return err
	}
	answers, failed := make(chan *pb.TailAuditResponse), make(chan error, 1)
	go func() {
		for {
			r, err := in.Recv()
			if err != nil {
				failed <- err
				return
			}
			select {
			case answers <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	d, fresh := v.auditView(), false
	ticker := time.NewTicker(auditPause)
	defer ticker.Stop()
	for {
		select {
		case r := <-answers:
			d.add(r)
			fresh = true
		case <-ticker.C:
			if fresh {
				show(d)
				fresh = false
			}
		case err := <-failed:
			return err
		}
	}
}
