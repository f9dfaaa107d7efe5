// SPDX-License-Identifier: Apache-2.0

package definitions

import (
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/queueconfig"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// everything is a queue with all fields set.
func everything() queue {
	q := queue{
		name: "orders", subscriptions: []subscription{
			{name: "audit"},
			{name: "eu", filter: `properties.region == "eu"`},
			{
				name: "strict", own: "max_deliveries dead_letter redelivery_delay ",
				policy: admin.QueueConfig{MaxDeliveries: 3},
			},
		},
		forwards: []admin.Forward{{To: "copies"}, {To: "moved", Move: true, Filter: "size > 10"}},
	}
	golden.FillStruct(&q.config)
	for _, f := range queueconfig.Fields() {
		q.own += f.Name + " "
	}
	q.config.TTL, q.config.RetentionBytes = 90*time.Minute, 10<<30
	q.config.Overflow = admin.OverflowDropHead
	return q
}

func detailedSchedule() *pb.Schedule {
	return &pb.Schedule{
		Name: "nightly", Queue: "jobs", Cron: "0 2 * * *", TimeZone: "Europe/Berlin", Paused: true,
		Missed: pb.MissedOccurrences_MISSED_OCCURRENCES_ALL,
		Message: &pb.Message{
			Body: []byte("{\"job\":\"cleanup\"}\n"), ContentType: "application/json", Subject: "s", Group: "g",
			CorrelationId: "c", ReplyTo: "r", Priority: new(uint32(7)), Ttl: durationpb.New(90 * time.Minute),
			Delay:      durationpb.New(time.Second),
			Properties: map[string]string{"digits": "3", "flag": "true", "team": "sales"},
			TypedProperties: map[string]*pb.PropertyValue{
				"bool":    {Kind: &pb.PropertyValue_BoolValue{BoolValue: true}},
				"bytes":   {Kind: &pb.PropertyValue_BytesValue{BytesValue: []byte{0, 255}}},
				"double":  {Kind: &pb.PropertyValue_DoubleValue{DoubleValue: 3}},
				"integer": {Kind: &pb.PropertyValue_IntValue{IntValue: math.MinInt64}},
				"small":   {Kind: &pb.PropertyValue_DoubleValue{DoubleValue: 1e-300}},
			},
		},
	}
}

// requireEqual compares documents. Schedules are compared as messages, because empty and missing maps are equal.
func requireEqual(t *testing.T, want, got *document) {
	t.Helper()
	require.Equal(t, want.queues, got.queues)
	require.Equal(t, want.policies, got.policies)
	require.Len(t, got.schedules, len(want.schedules))
	for i := range want.schedules {
		require.True(t, proto.Equal(want.schedules[i], got.schedules[i]), "%v\n%v", want.schedules[i], got.schedules[i])
	}
}

// A written file is read back without differences, including every field of a configuration.
func TestRoundTrip(t *testing.T) {
	queues := []queue{{name: "a", subscriptions: []subscription{{name: client.DefaultSubscription}}}, everything()}
	queues = append(queues, queue{name: "topic", subscriptions: []subscription{}})
	for i := range reflect.TypeFor[admin.QueueConfig]().NumField() {
		require.False(t, reflect.ValueOf(queues[1].config).Field(i).IsZero(), "field %d", i)
	}
	document := &document{queues: queues, settings: settings{schedules: []*pb.Schedule{detailedSchedule(), {
		Name: "poll", Queue: "orders", Every: durationpb.New(30 * time.Second),
		Missed:  pb.MissedOccurrences_MISSED_OCCURRENCES_ONCE,
		Message: &pb.Message{Body: []byte{0xff}},
	}}, policies: []admin.Policy{
		{Pattern: "*", Limits: admin.PolicyLimits{MaxBytes: 10 << 30, TTL: time.Hour}},
		{Pattern: "orders.*", Priority: 10, Defaults: admin.QueueConfig{MaxDeliveries: 5, DeadLetter: "orders.dead"}},
	}}}
	content, err := encode(document)
	require.NoError(t, err)
	golden.Text(t, "queues.yaml", string(content))
	back, err := decode("f", content)
	require.NoError(t, err)
	requireEqual(t, document, back)

	text, err := document.object().MarshalJSON()
	require.NoError(t, err)
	back, err = decode("f", text)
	require.NoError(t, err, "JSON is YAML")
	requireEqual(t, document, back)
	golden.JSON(t, "queues", document.object())
}

func TestNamesOfFields(t *testing.T) {
	for name, want := range map[string]string{
		"MaxMessages": "max_messages", "TTL": "ttl", "DeadLetterExpired": "dead_letter_expired", "Delay": "delay",
		"MaxTTL": "max_ttl", "TTLMax": "ttl_max",
	} {
		require.Equal(t, want, queueconfig.SnakeCase(name))
	}
}

// Each invalid file is rejected with the line and the cause.
func TestInvalidFiles(t *testing.T) {
	const q = "version: 1\nqueues:\n  - name: a\n    " // the fourth line follows
	const schedule = "version: 1\nschedules: [{"
	for name, c := range map[string]struct{ content, want string }{
		"empty":              {"", "f: the file is empty"},
		"no YAML":            {"a: [", "f: yaml: line 1"},
		"two documents":      {"version: 1\n---\nversion: 1\n", "data after the first document"},
		"a list":             {"- a\n", "f:1: a definitions file must be a mapping"},
		"no version":         {"queues: []\n", "missing version; add `version: 1`"},
		"newer version":      {"version: 2\n", `f:1: unknown version "2"`},
		"unknown key":        {"version: 1\nqueus: []\n", `f:2: unknown key in a definitions file: "queus"`},
		"queues no list":     {"version: 1\nqueues: a\n", "f:2: must be a list"},
		"queue without name": {"version: 1\nqueues:\n  - ttl: 3s\n", "f:3: missing queue name"},
		"unknown field":      {q + "max_mesages: 3\n", `f:4: unknown key in a queue: "max_mesages"`},
		"field twice":        {q + "ttl: 3s\n    ttl: 4s\n", `f:5: duplicate key in a queue: "ttl"`},
		"queue twice":        {"version: 1\nqueues: [{name: a}, {name: a}]\n", `queue "a" is defined twice`},
		"duration":           {q + "ttl: 3\n", `f:4: invalid value: ttl: "3" is not a duration`},
		"count":              {q + "max_messages: -3\n", "is not a valid integer"},
		"too many":           {q + "max_deliveries: 5000000000\n", "is not a valid integer"},
		"size":               {q + "max_bytes: 3 sacks\n", "is not a size"},
		"bool":               {q + "exclusive: perhaps\n", "is not true or false"},
		"number":             {q + "redelivery_multiplier: x\n", "is not a number"},
		"no number":          {q + "redelivery_multiplier: nan\n", "is not a number"},
		"overflow":           {q + "overflow: spill\n", "is none of reject"},
		"list for a value":   {q + "ttl: [1s]\n", "f:4: must be a single value"},
		"null":               {q + "ttl:\n", "f:4: missing value"},
		"subscriptions null": {q + "subscriptions:\n", "for an empty list, write []"},
		"subscription twice": {q + "subscriptions: [b, b]\n", `subscription "b" is defined twice`},
		"subscription key":   {q + "subscriptions: [{name: b, start: x}]\n", `unknown key in a subscription: "start"`},
		"subscription name":  {q + "subscriptions: [{filter: x}]\n", "missing subscription name"},
		"forward to":         {q + "forwards: [{move: true}]\n", "missing destination of a forward"},
		"forward twice":      {q + "forwards: [{to: b}, {to: b}]\n", `a forward to "b" is defined twice`},
		"forward move":       {q + "forwards: [{to: b, move: 3}]\n", `move is "3"`},
		"schedule name":      {schedule + "queue: q, every: 1s}]\n", "f:2: missing schedule name"},
		"schedule queue":     {schedule + "name: a, every: 1s}]\n", `missing queue of schedule "a"`},
		"no times":           {schedule + "name: a, queue: q}]\n", `schedule "a" requires either cron or every`},
		"both times":         {schedule + "name: a, queue: q, every: 1s, cron: x}]\n", "requires either cron or every"},
		"schedule key":       {schedule + "name: a, message_id: x}]\n", `unknown key in a schedule: "message_id"`},
		"missed":             {schedule + "name: a, missed: never}]\n", `missed is "never"; use skip, once or all`},
		"interval":           {schedule + "name: a, every: 3}]\n", `every: "3" is not a duration`},
		"base64":             {schedule + "name: a, body_base64: '?'}]\n", `body_base64: "?" is not base64`},
		"large integer":      {schedule + "name: a, properties: {b: 9223372036854775808}}]\n", "property b: invalid value"},
		"schedule twice": {
			schedule + "name: a, queue: q, every: 1s}, {name: a, queue: q, every: 1s}]\n", `schedule "a" is defined twice`,
		},
	} {
		_, err := decode("f", []byte(c.content))
		require.ErrorIs(t, err, errFile, name)
		require.Contains(t, strings.Replace(err.Error(), errFile.Error()+": ", "", 1), c.want, name)
	}
}

func FuzzDecode(f *testing.F) {
	content, err := encode(&document{
		queues:   []queue{everything()},
		settings: settings{policies: []admin.Policy{{Pattern: "*"}}, schedules: []*pb.Schedule{detailedSchedule()}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(content)
	f.Add([]byte("version: 1\nqueues: &a [{name: x, subscriptions: [y]}]\n"))
	f.Add([]byte("&a [*a]"))
	f.Fuzz(func(t *testing.T, content []byte) {
		first, err := decode("f", content)
		if err != nil {
			return
		}
		again, err := encode(first)
		if err != nil {
			t.Fatal(err)
		}
		back, err := decode("f", again)
		if err != nil {
			t.Fatalf("%s: %v", again, err)
		}
		require.Len(t, back.queues, len(first.queues))
		compare(first, &existing{})
	})
}

// A dead-letter queue is created before the queues that name it, regardless of the names, and deleted after them.
func TestTargetsFirst(t *testing.T) {
	named := func(name, target string) queue {
		return queue{name: name, config: admin.QueueConfig{DeadLetter: target}}
	}
	var names []string
	for _, q := range targetsFirst([]queue{
		named("a", "b"), named("b", "c"), named("c", ""), named("d", "b"), named("e", "x"),
	}) {
		names = append(names, q.name)
	}
	require.Equal(t, []string{"c", "b", "a", "d", "e"}, names)
	require.Len(t, targetsFirst([]queue{named("a", "b"), named("b", "a")}), 2, "a cycle, which the pair rejects")
}
