package main

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/conditions"
)

// Each condition is shown once: from the node that it is about, if that answers, and of the pair from those that know
// its record.
func TestStatusConditions(t *testing.T) {
	since := timestamppb.New(time.Unix(1_700_000_000, 0))
	told := func(kind, node string, severity pb.Severity, details string) *pb.Condition {
		return &pb.Condition{
			Kind: kind, NodeId: node, NodeName: node, Severity: severity, Details: details,
			Since: since, Cause: "That means.", Action: "Do this.",
		}
	}
	s := statusJSON{Nodes: []nodeJSON{
		{NodeID: "a", Name: "a", conditions: []*pb.Condition{
			told("paused", "", pb.Severity_SEVERITY_INFO, ""),
			told("disk-low", "b", pb.Severity_SEVERITY_CRITICAL, "of old"),
			told("disk-low", "c", pb.Severity_SEVERITY_CRITICAL, "does not answer"),
		}},
		{NodeID: "b", Name: "b", conditions: []*pb.Condition{
			told("paused", "", pb.Severity_SEVERITY_INFO, ""),
			told("disk-low", "b", pb.Severity_SEVERITY_CRITICAL, "just now"),
			told("one-copy-only", "", pb.Severity_SEVERITY_CRITICAL, "by an old record"),
		}},
	}}
	s.addConditions([]*pb.PairStatus{{Config: 7}, {Config: 6}})
	var got []string
	for _, c := range s.Conditions {
		got = append(got, c.Condition+" "+c.Details)
	}
	require.Equal(t, []string{"disk-low does not answer", "disk-low just now", "paused "}, got)

	var b bytes.Buffer
	p, err := out.New(&b, "table")
	require.NoError(t, err)
	require.NoError(t, (&app{print: p}).printConditions(s.Conditions[1:2]))
	require.Regexp(t, `^CRITICAL disk-low on b since [-0-9: ]+: just now\n  That means.\n  Do this.\n$`, b.String())
	raw, err := json.Marshal(s)
	require.NoError(t, err)
	require.Contains(t, string(raw), `{"condition":"paused","severity":"info","since":"2023-11-14T22:13:20Z","means":"That means.","do":"Do this."}`)
}

// A release that knows no conditions has alarms.
func TestStatusConditionsOfOlderRelease(t *testing.T) {
	got := toldConditions(&pb.GetStatusResponse{
		Node: &pb.NodeStatus{NodeId: "1", Name: "a"}, Alarms: []*pb.Alarm{{Kind: "damaged-log", Message: "record 7"}},
	})
	require.Len(t, got, 1)
	require.Equal(t, "damaged-log", got[0].GetKind())
	require.Equal(t, "record 7", got[0].GetCause())
	require.Equal(t, "a", got[0].GetNodeName())
}

// What a condition says to do can be done: each command and flag that it names is there.
func TestConditionsNameCommands(t *testing.T) {
	a := &app{environment: &environment{
		stdout: io.Discard, stderr: io.Discard,
		lookup: func(string) (string, bool) { return "", false },
	}}
	root := a.rootCommand()
	named := regexp.MustCompile("`lockstep ([^`]*)`")
	found := 0
	for _, d := range conditions.All() {
		for _, m := range named.FindAllStringSubmatch(d.Cause+d.Action, -1) {
			found++
			words := strings.Fields(m[1])
			cmd, rest, err := root.Find(words)
			require.NoError(t, err, "%s: %s", d.Kind, m[0])
			require.NotSame(t, root, cmd, "%s: %s", d.Kind, m[0])
			for _, w := range rest {
				flag, ok := strings.CutPrefix(w, "--")
				require.True(t, ok, "%s: %s: %s is no command", d.Kind, m[0], w)
				require.NotNil(t, cmd.Flags().Lookup(flag), "%s: %s has no flag --%s", d.Kind, cmd.CommandPath(), flag)
			}
		}
	}
	require.Greater(t, found, 10)
}
