// SPDX-License-Identifier: Apache-2.0

package schedule

import (
	"encoding/base64"
	"fmt"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

type state struct {
	Name string `json:"name"`
	// Pair is the pair of a fleet that has the schedule; set in lists only.
	Pair      string       `json:"pair,omitempty"`
	Queue     string       `json:"queue"`
	Cron      string       `json:"cron,omitempty"`
	TimeZone  string       `json:"time_zone,omitempty"`
	Every     string       `json:"every,omitempty"`
	Missed    string       `json:"missed"`
	Paused    bool         `json:"paused"`
	PutBy     string       `json:"put_by,omitempty"`
	StartedAt time.Time    `json:"started_at,omitzero"`
	LastAt    time.Time    `json:"last_at,omitzero"`
	NextAt    time.Time    `json:"next_at,omitzero"`
	Message   messageState `json:"message"`
	History   []runState   `json:"history"`

	body []byte
}

type messageState struct {
	output.Content

	TTL   string `json:"ttl,omitempty"`
	Delay string `json:"delay,omitempty"`
}

type runState struct {
	DueAt    time.Time `json:"due_at"`
	At       time.Time `json:"at"`
	Outcome  string    `json:"outcome"`
	Sequence uint64    `json:"sequence,omitempty"`
	Error    string    `json:"error,omitempty"`
	Skipped  uint64    `json:"skipped,omitempty"`
	Manual   bool      `json:"manual,omitempty"`
}

// ran is the JSON output of `schedule run`.
type ran struct {
	Schedule string `json:"schedule"`
	Queue    string `json:"queue"`
	Sequence uint64 `json:"sequence"`
	LSN      uint64 `json:"lsn"`
}

func newState(s *pb.Schedule) state {
	out := state{
		Name: s.GetName(), Queue: s.GetQueue(), Cron: s.GetCron(), TimeZone: s.GetTimeZone(), Every: span(s.GetEvery()),
		Missed: "once", Paused: s.GetPaused(), PutBy: s.GetPutBy(), StartedAt: at(s.GetStartedAt()),
		LastAt: at(s.GetLastAt()), NextAt: at(s.GetNextAt()), Message: newMessage(s.GetMessage()), History: []runState{},
		body: s.GetMessage().GetBody(),
	}
	for text, rule := range MissedRules() {
		if s.GetMissed() == rule {
			out.Missed = text
		}
	}
	for _, r := range s.GetHistory() {
		out.History = append(out.History, runState{
			DueAt: at(r.GetDueAt()), At: at(r.GetAt()), Outcome: outcome(r.GetOutcome()), Sequence: r.GetSequence(),
			Error: r.GetError(), Skipped: r.GetSkipped(), Manual: r.GetManual(),
		})
	}
	return out
}

func newMessage(m *pb.Message) messageState {
	out := messageState{TTL: span(m.GetTtl()), Delay: span(m.GetDelay()), Content: output.Content{
		Properties: m.GetProperties(), CorrelationID: m.GetCorrelationId(), ReplyTo: m.GetReplyTo(),
		ContentType: m.GetContentType(), Subject: m.GetSubject(), Group: m.GetGroup(),
	}}
	if m != nil && m.Priority != nil {
		out.Priority = new(uint8(m.GetPriority()))
	}
	for k, v := range m.GetTypedProperties() {
		if out.TypedProperties == nil {
			out.TypedProperties = make(map[string]any)
		}
		switch v := v.GetKind().(type) {
		case *pb.PropertyValue_BoolValue:
			out.TypedProperties[k] = v.BoolValue
		case *pb.PropertyValue_IntValue:
			out.TypedProperties[k] = v.IntValue
		case *pb.PropertyValue_DoubleValue:
			out.TypedProperties[k] = v.DoubleValue
		case *pb.PropertyValue_BytesValue:
			out.TypedProperties[k] = map[string]string{"base64": base64.StdEncoding.EncodeToString(v.BytesValue)}
		}
	}
	if utf8.Valid(m.GetBody()) {
		out.Body = new(string(m.GetBody()))
	} else {
		out.BodyBase64 = base64.StdEncoding.EncodeToString(m.GetBody())
	}
	return out
}

func at(t *timestamppb.Timestamp) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.AsTime()
}

func span(d *durationpb.Duration) string {
	if d == nil {
		return ""
	}
	return output.Span(d.AsDuration())
}

func outcome(o pb.ScheduleOutcome) string {
	switch o {
	case pb.ScheduleOutcome_SCHEDULE_OUTCOME_PUBLISHED:
		return "published"
	case pb.ScheduleOutcome_SCHEDULE_OUTCOME_FAILED:
		return "failed"
	case pb.ScheduleOutcome_SCHEDULE_OUTCOME_SKIPPED:
		return "skipped"
	case pb.ScheduleOutcome_SCHEDULE_OUTCOME_UNSPECIFIED:
	}
	return fmt.Sprintf("outcome %d", o)
}

// times returns the times of the schedule for display.
func (s *state) times() string {
	switch {
	case s.Every != "":
		return "every " + s.Every
	case s.TimeZone != "":
		return s.Cron + " " + s.TimeZone
	default:
		return s.Cron + " UTC"
	}
}

func (r *runState) text() string {
	switch {
	case r.Error != "":
		return r.Outcome + ": " + r.Error
	case r.Skipped > 0:
		return fmt.Sprintf("%s %s", r.Outcome, output.Plural(r.Skipped, "missed occurrence"))
	case r.Manual:
		return fmt.Sprintf("%s by request, sequence %d", r.Outcome, r.Sequence)
	default:
		return fmt.Sprintf("%s, sequence %d", r.Outcome, r.Sequence)
	}
}
