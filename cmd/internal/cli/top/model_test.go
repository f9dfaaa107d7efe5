// SPDX-License-Identifier: Apache-2.0

package top

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// session is a model and the requests that it made.
type session struct {
	t *testing.T
	m model

	wanted               query
	switchovers, resumed int
	paused               int
}

func newSession(t *testing.T) *session {
	s := &session{t: t}
	nothing := func() tea.Msg { return nil }
	s.m = newModel(actions{
		want:       func(q query) { s.wanted = q },
		switchover: func() tea.Cmd { s.switchovers++; return nothing },
		pause: func(paused bool) tea.Cmd {
			if paused {
				s.paused++
			} else {
				s.resumed++
			}
			return nothing
		},
	})
	return s
}

func (s *session) report(msg tea.Msg) tea.Cmd {
	s.t.Helper()
	next, cmd := s.m.Update(msg)
	s.m = next.(model)
	return cmd
}

// press sends keys. A text of several characters that is not a key name is typed.
func (s *session) press(keys ...string) (last tea.Cmd) {
	s.t.Helper()
	special := map[string]rune{
		"enter": tea.KeyEnter, "esc": tea.KeyEscape, "backspace": tea.KeyBackspace, "up": tea.KeyUp,
		"down": tea.KeyDown, "pgdown": tea.KeyPgDown, "end": tea.KeyEnd, "home": tea.KeyHome,
	}
	for _, k := range keys {
		if code, ok := special[k]; ok {
			last = s.report(tea.KeyPressMsg{Code: code})
			continue
		}
		for _, r := range k {
			last = s.report(tea.KeyPressMsg{Code: r, Text: string(r)})
		}
	}
	return last
}

var styles = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// screen returns the displayed text without styles. It checks that the text fits the terminal.
func (s *session) screen() string {
	s.t.Helper()
	text := styles.ReplaceAllString(s.m.View().Content, "")
	lines := strings.Split(text, "\n")
	require.LessOrEqual(s.t, len(lines), s.m.height)
	for i, line := range lines {
		require.LessOrEqual(s.t, utf8.RuneCountInString(line), s.m.width, line)
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
}

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// aPair is a pair with a standby that reports conditions.
func aPair(conditions ...pairstatus.Condition) statusMsg {
	return statusMsg{
		at: noon.In(time.Local),
		status: pairstatus.Status{
			Pair: &pairstatus.Pair{
				PairID: "0197c2d4-5b1e-7000-8000-000000000000", Config: 33, Term: 12, Active: "a",
				InSync: []string{"a", "b"}, MinInSync: 1, Coordinator: "etcd", CoordinatorReachable: true,
			},
			Nodes: []pairstatus.Node{
				{
					Address: "10.0.0.1:7420", Name: "a", NodeID: "ida", Role: "active", InSync: true, Term: 12,
					Version: "v0.2.0", Messages: 1_234_567, MessageBytes: 3 << 30, DiskFree: 40 << 30,
					DiskSize: 100 << 30, Standby: "in-sync", StandbyLag: 12, StandbyLagBytes: 3 << 20,
					StandbyLagSeconds: 2,
					Activity: &pairstatus.Activity{
						MemoryBytes: 200 << 20, MemoryBudgetBytes: 512 << 20, Consumers: 17, Connections: 40,
					},
				},
				{
					Address: "10.0.0.2:7420", Name: "b", NodeID: "idb", Role: "standby", InSync: true, Term: 12,
					Version: "v0.2.0", DiskFree: 41 << 30, DiskSize: 100 << 30,
					Activity: &pairstatus.Activity{MemoryBytes: 90 << 20, MemoryBudgetBytes: 512 << 20},
				},
			},
			Conditions: conditions,
		},
		rates: &pairstatus.Rates{
			Published: 12_345, Delivered: 12_001.4, Acknowledged: 3.25, CommitP50MS: 0.875, CommitP99MS: 12,
		},
	}
}

func alarm(n int) pairstatus.Condition {
	return pairstatus.Condition{
		Condition: fmt.Sprintf("alarm-%d", n), Severity: []string{"critical", "warning", "info"}[n%3], Node: "b",
		Since: noon, Details: "the disk of b has " + strings.Repeat("very ", n) + "little left",
		Meaning: "publishes are refused soon", Do: "make room, or lower disk.low-watermark",
	}
}

// someQueues returns the queried page of n queues.
func someQueues(n int, q query) queuesMsg {
	all := make([]Queue, 0, n)
	for i := range n {
		published, acknowledged, oldest := float64(i*100), float64(i)/4, float64(i*30)
		all = append(all, Queue{
			Name: fmt.Sprintf("team-%d/orders.%05d", i%3, i), Messages: uint64(i * 1000), Bytes: uint64(i * 123_456),
			Consumers: uint64(i % 7),
			Activity:  &Activity{Published: &published, Acknowledged: &acknowledged, OldestSeconds: &oldest},
			Subscriptions: []Subscription{
				{Name: "default", Backlog: uint64(i * 1000), InFlight: 3, Consumers: uint64(i % 7)},
				{Name: "audit", Backlog: 7, Filter: `properties.region == "eu"`},
			},
			facts: []fact{{"published", "9,999 since creation"}, {"limit", "20,000 messages"}},
		})
	}
	return queuesMsg{page: pageOf(all, q)}
}

// TestFrames compares each screen with a golden file, on terminals of several sizes.
func TestFrames(t *testing.T) {
	local := time.Local
	time.Local = time.UTC
	defer func() { time.Local = local }()
	frames := map[string]func(s *session){
		"asking": func(*session) {},
		"pair":   func(s *session) { s.report(aPair()); s.report(someQueues(50, s.wanted)) },
		"alarms": func(s *session) {
			s.report(aPair(alarm(0), alarm(1), alarm(2), alarm(3), alarm(4)))
			s.report(someQueues(3, s.wanted))
		},
		"all-alarms": func(s *session) { s.report(aPair(alarm(0), alarm(1))); s.press("a") },
		"one-node-down": func(s *session) {
			p := aPair()
			p.status.Nodes[0].Role, p.status.Nodes[0].Standby = "active-alone", ""
			p.status.Nodes[1] = pairstatus.Node{Address: "10.0.0.2:7420", Error: "connection refused"}
			p.rates = nil
			s.report(p)
			s.report(someQueues(2, s.wanted))
		},
		"no-active": func(s *session) {
			p := aPair()
			p.status.Nodes[0] = pairstatus.Node{Address: "10.0.0.1:7420", Error: "no answer"}
			p.status.Pair.CoordinatorReachable, p.status.Pair.Paused = false, "since noon"
			s.report(p)
			s.report(queuesMsg{page: page{query: s.wanted}, err: errors.New("list queues: no node is active")})
		},
		"queues-old": func(s *session) {
			s.report(aPair())
			s.report(someQueues(3, s.wanted))
			s.report(queuesMsg{page: page{query: s.wanted}, err: errors.New("list queues: no node is active")})
		},
		"filter": func(s *session) {
			s.report(rightsMsg{true})
			s.report(aPair())
			s.press("/", "team-1")
			s.report(someQueues(50, s.wanted))
		},
		"queue": func(s *session) {
			s.report(aPair())
			s.report(someQueues(50, s.wanted))
			s.press("down", "enter")
			s.report(someQueues(50, s.wanted))
		},
		"queue-gone": func(s *session) {
			s.report(aPair())
			s.report(someQueues(50, s.wanted))
			s.press("enter")
			s.report(someQueues(0, s.wanted))
		},
		"switchover": func(s *session) {
			s.report(rightsMsg{true})
			s.report(aPair())
			s.report(someQueues(50, s.wanted))
			s.press("S")
		},
		"switched": func(s *session) {
			s.report(rightsMsg{true})
			s.report(aPair())
			s.press("Sy")
			s.report(doneMsg{err: errors.New("switchover: the pair is not in sync: " + strings.Repeat("why ", 100))})
		},
		"keys": func(s *session) { s.press("?") },
	}
	for name, prepare := range frames {
		t.Run(name, func(t *testing.T) {
			var all strings.Builder
			for _, size := range [][2]int{{80, 24}, {120, 30}, {50, 14}, {30, 8}} {
				s := newSession(t)
				s.report(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
				prepare(s)
				fmt.Fprintf(&all, "--- %d×%d\n%s\n", size[0], size[1], s.screen())
			}
			golden.Text(t, name+".txt", all.String())
		})
	}
}

// The model uses only the terminal's palette, and a printed screen has no styles.
func TestNoColour(t *testing.T) {
	s := newSession(t)
	s.report(aPair(alarm(0)))
	require.Regexp(t, styles, s.m.View().Content)
	text := printed(&Screen{At: noon, Status: aPair(alarm(0)).status, Queues: someQueues(2, query{limit: 9}).page.queues})
	require.NotContains(t, text, "\x1b")
	require.Contains(t, text, "CRITICAL alarm-0")
	require.Contains(t, text, "orders.00001")
}

// A window around the selected queue is requested for any number of queues, and the selection stays visible.
func TestSelectionMoves(t *testing.T) {
	const many = 10_000
	s := newSession(t)
	s.report(aPair())
	all := someQueues(many, query{limit: many}).page.queues
	answer := func() {
		if s.m.page.query != s.wanted || !s.m.listed {
			s.report(queuesMsg{page: pageOf(slices.Clone(all), s.wanted)})
		}
	}
	answer()
	require.Contains(t, s.screen(), "(1 of 10,000)")
	require.Equal(t, query{limit: window}, s.wanted)
	s.press("pgdown", "down")
	require.Contains(t, s.screen(), "of 10,000)")
	require.Equal(t, s.m.rows(), s.m.cursor, "a page with one line of the previous page, and a line")
	s.press("end")
	require.Positive(t, s.wanted.offset)
	answer()
	require.Contains(t, s.screen(), "(10,000 of 10,000)")
	require.Contains(t, s.screen(), "orders.00000", "the smallest is the last")
	require.Equal(t, "team-0/orders.00000", s.m.chosen().Name)
	s.press("home")
	answer()
	require.Contains(t, s.screen(), "(1 of 10,000)")
	require.Equal(t, 0, s.wanted.offset)
	for range 500 {
		s.press("down")
		answer()
		require.NotNil(t, s.m.chosen(), "%d", s.m.cursor)
		require.Contains(t, s.screen(), s.m.chosen().Name)
	}
	// The new total is less than the index of the selected queue.
	s.report(someQueues(3, s.wanted)) // empty: the requested window begins after the last queue
	s.report(someQueues(3, s.wanted))
	require.Contains(t, s.screen(), "(3 of 3)")
	require.NotNil(t, s.m.chosen())
}

// The list can be sorted by each column, in both orders.
func TestSorting(t *testing.T) {
	s := newSession(t)
	s.report(aPair())
	seen := map[order]bool{}
	for range orders {
		seen[s.wanted.order] = true
		s.report(someQueues(30, s.wanted))
		require.Contains(t, s.screen(), "by "+s.wanted.order.String())
		require.Contains(t, s.screen(), "*")
		s.press("s")
	}
	require.Len(t, seen, int(orders))
	require.Equal(t, byMessages, s.wanted.order)
	s.press("<")
	require.Equal(t, byName, s.wanted.order)
	s.report(someQueues(30, s.wanted))
	require.Equal(t, "team-0/orders.00000", s.m.chosen().Name)
	s.press("r")
	require.True(t, s.wanted.reversed)
	s.report(someQueues(30, s.wanted))
	require.Equal(t, "team-2/orders.00029", s.m.chosen().Name)
}

// Typed characters change the filter and are not commands. A response to an older query is ignored.
func TestFilterInput(t *testing.T) {
	s := newSession(t)
	s.report(aPair())
	s.report(someQueues(30, s.wanted))
	old := s.wanted
	s.press("/", "qSP?")
	require.Equal(t, "qSP?", s.wanted.contains)
	require.Nil(t, s.m.asking)
	s.report(someQueues(30, old))
	require.NotEqual(t, s.wanted, s.m.page.query.contains)
	s.press("backspace", "backspace", "backspace", "backspace", "backspace", "orders.00012", "enter")
	s.report(someQueues(30, s.wanted))
	require.Equal(t, 1, s.m.page.total)
	require.Contains(t, s.screen(), `with "orders.00012"`)
	s.press("esc")
	require.Empty(t, s.wanted.contains)
	s.report(tea.PasteMsg{Content: "x"})
	require.Empty(t, s.wanted.contains, "no input is active")
}

// No action runs without confirmation, without permission, or twice.
func TestActionsRequireConfirmation(t *testing.T) {
	s := newSession(t)
	s.press("S")
	require.Contains(t, s.screen(), "pair responds")
	s.report(aPair())
	s.press("S", "y")
	require.Zero(t, s.switchovers)
	require.Contains(t, s.screen(), "access whoami")
	s.report(rightsMsg{true})
	s.press("S")
	require.Contains(t, s.screen(), "from a to b?")
	for _, no := range []string{"n", "q", "enter", "esc", "S"} {
		s.press("S", no)
		require.Zero(t, s.switchovers)
		require.Nil(t, s.m.asking)
	}
	require.NotNil(t, s.press("S", "y"))
	require.Equal(t, 1, s.switchovers)
	require.Contains(t, s.screen(), "switching over")
	s.press("S", "y", "P", "y")
	require.Equal(t, 1, s.switchovers)
	require.Zero(t, s.paused)
	s.report(doneMsg{text: "10.0.0.2:7420 is active now"})
	require.Contains(t, s.screen(), "10.0.0.2:7420 is")
	s.press("P", "y")
	require.Equal(t, 1, s.paused)
	s.report(doneMsg{err: io.ErrUnexpectedEOF})
	require.Contains(t, s.screen(), io.ErrUnexpectedEOF.Error())
	p := aPair()
	p.status.Pair.Paused = "since noon"
	s.report(p)
	s.press("P")
	require.Contains(t, s.screen(), "Resume ")
	s.press("Y")
	require.Equal(t, 1, s.resumed)
}

// After any sequence of keys and updates, the screen fits the terminal.
func TestScreenFitsAfterAnyKeys(t *testing.T) {
	s := newSession(t)
	keys := strings.Fields("enter esc backspace up down pgdown end home / s r < ? a S P n y x")
	sizes := [][2]int{{80, 24}, {40, 10}, {200, 60}, {39, 9}, {1, 1}, {80, 11}}
	queues := someQueues(700, query{limit: 700}).page.queues
	random := uint32(1)
	for i := range 5000 {
		random = random*1664525 + 1013904223
		switch pick := random >> 16; {
		case i%97 == 0:
			size := sizes[int(pick)%len(sizes)]
			s.report(tea.WindowSizeMsg{Width: size[0], Height: size[1]})
		case i%13 == 0:
			s.report(aPair(alarm(0), alarm(1), alarm(5)))
		case i%7 == 0:
			s.report(queuesMsg{page: pageOf(slices.Clone(queues[:int(pick)%len(queues)]), s.wanted)})
		case i%41 == 0:
			s.report(doneMsg{err: errors.New(strings.Repeat("long ", int(pick)%200))})
		case i%5 == 0:
			s.report(rightsMsg{pick%2 == 0})
		default:
			s.press(keys[int(pick)%len(keys)])
		}
		s.screen()
	}
	require.Positive(t, s.switchovers+s.paused)
}

// mayOperate returns true for a rule with roles, because the response does not contain the rights of the roles.
func TestMayOperate(t *testing.T) {
	rule := &pb.AccessRule{Rights: []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_PUBLISH}}
	me := &pb.WhoAmIResponse{Rules: []*pb.AccessRule{rule}}
	require.False(t, mayOperate(me))
	require.True(t, mayOperate(&pb.WhoAmIResponse{Open: true}))
	require.True(t, mayOperate(&pb.WhoAmIResponse{BootstrapOperator: true}))
	rule.Roles = []string{"ops"}
	require.True(t, mayOperate(me))
	rule.Roles, rule.Rights = nil, []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_OPERATE}
	require.True(t, mayOperate(me))
}
