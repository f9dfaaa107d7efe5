// SPDX-License-Identifier: Apache-2.0

package console

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/units"
)

// configField is one field of the form of a queue configuration.
type configField struct {
	Name, Label, Hint, Value string
	Check                    bool // checkbox
	Checked                  bool
	Options                  []string // choices, if not nil
	New                      bool     // can be set only at creation
}

// overflows is the values of QueueConfig.overflow by name.
var overflows = []string{"reject", "drop-head", "dead-letter-head"} //nolint:gochecknoglobals // a constant

// configFields returns the form fields for a configuration.
func configFields(c *pb.QueueConfig) []configField {
	count := func(n uint64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatUint(n, 10)
	}
	duration := func(d *durationpb.Duration) string {
		if d.AsDuration() == 0 {
			return ""
		}
		return d.AsDuration().String()
	}
	multiplier := ""
	if m := c.GetRedeliveryMultiplier(); m != 0 {
		multiplier = strconv.FormatFloat(m, 'f', -1, 64)
	}
	overflow := max(int(c.GetOverflow())-1, 0)
	return []configField{
		{Name: "max_messages", Label: "Maximum messages", Hint: "empty: no limit", Value: count(c.GetMaxMessages())},
		{Name: "max_bytes", Label: "Maximum bytes", Hint: "such as 10GiB; empty: no limit", Value: count(c.GetMaxBytes())},
		{Name: "overflow", Label: "Overflow", Value: overflows[min(overflow, len(overflows)-1)], Options: overflows},
		{Name: "ttl", Label: "Messages expire after", Hint: "such as 24h; empty: never", Value: duration(c.GetTtl())},
		{Name: "delay", Label: "Deliver after", Hint: "such as 30s; empty: immediately", Value: duration(c.GetDelay())},
		{
			Name: "max_deliveries", Label: "Maximum deliveries", Hint: "empty: no limit",
			Value: count(uint64(c.GetMaxDeliveries())),
		},
		{Name: "dead_letter", Label: "Dead-letter queue", Hint: "empty: discard", Value: c.GetDeadLetter()},
		{
			Name: "redelivery_delay", Label: "Redeliver after", Hint: "empty: immediately",
			Value: duration(c.GetRedeliveryDelay()),
		},
		{Name: "redelivery_multiplier", Label: "… multiplied on each redelivery", Hint: "1 to 1000", Value: multiplier},
		{
			Name: "redelivery_max_delay", Label: "… at most", Hint: "empty: no limit",
			Value: duration(c.GetRedeliveryMaxDelay()),
		},
		{Name: "retention_age", Label: "Retain for", Hint: "such as 7d", Value: duration(c.GetRetentionAge())},
		{Name: "retention_bytes", Label: "Retain bytes", Hint: "such as 1GiB", Value: count(c.GetRetentionBytes())},
		{Name: "retention_messages", Label: "Retain messages", Value: count(c.GetRetentionMessages())},
		{
			Name: "temporary_grace", Label: "Delete without consumers after", Hint: "empty: never",
			Value: duration(c.GetTemporaryGrace()),
		},
		{Name: "exclusive", Label: "One active consumer for each subscription", Check: true, Checked: c.GetExclusive()},
		{
			Name: "dead_letter_expired", Label: "Expired messages go to the dead-letter queue", Check: true,
			Checked: c.GetDeadLetterExpired(),
		},
		{
			Name: "priorities", Label: "Higher priorities first (cannot be changed later)", Check: true, New: true,
			Checked: c.GetPriorities(),
		},
	}
}

// formReader parses the fields of a form and keeps the first error.
type formReader struct {
	v   *View
	err error
}

func (r *formReader) fail(name, text, want string) {
	if r.err == nil {
		r.err = invalid(fmt.Sprintf("%s is %q; %s.", strings.ReplaceAll(name, "_", " "), text, want))
	}
}

func (r *formReader) number(name string, limit uint64) uint64 {
	text := strings.TrimSpace(r.v.Get(name))
	if text == "" {
		return 0
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n > limit {
		r.fail(name, text, fmt.Sprintf("expected an integer up to %d", limit))
	}
	return n
}

func (r *formReader) size(name string) uint64 {
	text := strings.TrimSpace(r.v.Get(name))
	if text == "" {
		return 0
	}
	n, err := parseBytes(text)
	if err != nil {
		r.fail(name, text, "expected a size such as 512MiB or 10GiB")
	}
	return n
}

func (r *formReader) duration(name string) *durationpb.Duration {
	text := strings.TrimSpace(r.v.Get(name))
	if text == "" {
		return nil
	}
	d, err := time.ParseDuration(units.ExpandDays(text))
	if err != nil || d < 0 {
		r.fail(name, text, "expected a duration such as 30s, 15m, 24h or 7d")
	}
	return durationpb.New(d)
}

// parseBytes parses a size in bytes with an optional unit up to TiB.
func parseBytes(text string) (uint64, error) {
	factor := uint64(1)
	for i, unit := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if before, has := strings.CutSuffix(text, unit); has {
			text, factor = strings.TrimSpace(before), 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(text, "B")), 10, 64)
	if err == nil && n > (1<<63)/factor {
		err = strconv.ErrRange
	}
	return n * factor, err
}

// readConfig parses the form of a configuration. Fields that can be set only at creation are read only if isNew.
func readConfig(v *View, c *pb.QueueConfig, isNew bool) error {
	r := formReader{v: v}
	c.MaxMessages, c.MaxBytes = r.number("max_messages", 1<<62), r.size("max_bytes")
	c.Ttl, c.Delay = r.duration("ttl"), r.duration("delay")
	c.MaxDeliveries = uint32(r.number("max_deliveries", 1_000_000))
	c.DeadLetter = strings.TrimSpace(v.Get("dead_letter"))
	c.RedeliveryDelay, c.RedeliveryMaxDelay = r.duration("redelivery_delay"), r.duration("redelivery_max_delay")
	c.RedeliveryMultiplier = 0
	if text := strings.TrimSpace(v.Get("redelivery_multiplier")); text != "" {
		m, err := strconv.ParseFloat(text, 64)
		if err != nil {
			r.fail("redelivery_multiplier", text, "expected a number from 1 to 1000")
		}
		c.RedeliveryMultiplier = m
	}
	c.RetentionAge, c.RetentionBytes = r.duration("retention_age"), r.size("retention_bytes")
	c.RetentionMessages = r.number("retention_messages", 1<<62)
	c.TemporaryGrace = r.duration("temporary_grace")
	c.Exclusive, c.DeadLetterExpired = v.Get("exclusive") != "", v.Get("dead_letter_expired") != ""
	c.Overflow = pb.Overflow_OVERFLOW_UNSPECIFIED
	for i, name := range overflows {
		if v.Get("overflow") == name && i > 0 {
			c.Overflow = pb.Overflow(i + 1)
		}
	}
	if isNew {
		c.Priorities = v.Get("priorities") != ""
	}
	return r.err
}
