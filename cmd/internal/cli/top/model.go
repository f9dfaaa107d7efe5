// SPDX-License-Identifier: Apache-2.0

package top

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
)

// window is the number of queues per request: the visible queues and some before and after them.
const window = 200

type screen int

const (
	ofPair screen = iota
	ofQueue
	ofAlarms // all conditions, in full
	ofKeys
)

type question struct {
	text string
	yes  func() tea.Cmd
	busy string
}

// model contains the last status and the operator's input. It does no I/O.
type model struct {
	do            actions
	paint         painter
	width, height int

	status   statusMsg
	reported bool              // a status was received
	names    map[string]string // node names by address, for nodes that do not respond
	page     page
	listErr  error
	listed   bool // a page was received
	operate  bool

	screen    screen
	query     query  // query of the queue list
	queue     string // displayed on the queue screen
	cursor    int    // index of the selected queue
	first     int    // index of the first visible queue
	scroll    int    // offset of the screens that are lists of lines
	filtering bool
	asking    *question
	busy      string
	shownText string
	failed    bool // shownText is an error
}

func newModel(do actions) model {
	return model{do: do, width: 80, height: 24, query: query{limit: window}, names: make(map[string]string)}
}

func (m model) Init() tea.Cmd { return nil }

// Update handles messages from the source, keys and window sizes.
func (m model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case statusMsg:
		m.status, m.reported = msg, true
		for i := range msg.status.Nodes {
			if n := &msg.status.Nodes[i]; n.Name != "" {
				m.names[n.Address] = n.Name
			}
		}
	case queuesMsg:
		m.takeQueues(msg)
	case rightsMsg:
		m.operate = msg.operate
	case doneMsg:
		m.busy, m.shownText, m.failed = "", msg.text, msg.err != nil
		if msg.err != nil {
			m.shownText = msg.err.Error()
		}
	case tea.KeyPressMsg:
		return m.key(msg)
	case tea.PasteMsg:
		if m.filtering {
			m.filter(m.query.contains + msg.Content)
		}
	}
	m.follow()
	return m, nil
}

func (m *model) takeQueues(msg queuesMsg) {
	if msg.page.query != m.wanted() {
		return
	}
	if m.listErr = msg.err; msg.err == nil {
		m.page, m.listed = msg.page, true
	}
}

// wanted returns the query for the current screen. The queue screen requests only its queue.
func (m *model) wanted() query {
	if m.screen == ofQueue {
		return query{contains: m.queue, order: byName, limit: window}
	}
	return m.query
}

// follow scrolls to the selected queue and requests the window around it.
func (m *model) follow() {
	if m.screen != ofQueue && m.listed && m.page.query == m.query {
		m.cursor = max(min(m.cursor, m.page.total-1), 0)
	}
	rows := m.rows()
	m.first = max(min(m.first, m.cursor), m.cursor-rows+1, 0)
	if m.cursor < m.query.offset || m.cursor+rows > m.query.offset+window {
		m.query.offset = max(m.cursor-window/2, 0)
	}
	if m.do.want != nil {
		m.do.want(m.wanted())
	}
}

func (m *model) chosen() *Queue {
	if i := m.cursor - m.page.query.offset; m.listed && i >= 0 && i < len(m.page.queues) {
		return &m.page.queues[i]
	}
	return nil
}

// shown returns the queue of the queue screen; nil if it was deleted or is not listed yet.
func (m *model) shown() *Queue {
	if i := slices.IndexFunc(m.page.queues, func(q Queue) bool { return q.Name == m.queue }); i >= 0 {
		return &m.page.queues[i]
	}
	return nil
}

func (m model) key(msg tea.KeyPressMsg) (tea.Model, tea.Cmd) {
	name := msg.String()
	var cmd tea.Cmd
	switch {
	case name == "ctrl+c":
		return m, tea.Quit
	case m.asking != nil:
		cmd = m.answer(name)
	case m.filtering:
		m.typed(name, msg.Key().Text)
	case name == "q":
		return m, tea.Quit
	case name == "S", name == "P":
		m.prompt(name)
	case name == "?":
		m.openPage(ofKeys)
	case name == "a":
		m.openPage(ofAlarms)
	case name == "esc", name == "backspace":
		m.back()
	case m.screen == ofPair:
		m.listKey(name)
	default:
		m.scroll += move(name, m.height/2)
		m.scroll = max(m.scroll, 0)
	}
	m.follow()
	return m, cmd
}

func (m *model) openPage(s screen) {
	if m.screen == s {
		s = ofPair
	}
	m.screen, m.scroll = s, 0
}

// back returns to the pair screen. On the pair screen, it clears the filter or, without a filter, the last message.
func (m *model) back() {
	switch {
	case m.screen != ofPair:
		m.screen, m.scroll = ofPair, 0
	case m.query.contains != "":
		m.filter("")
	default:
		m.shownText = ""
	}
}

func (m *model) listKey(name string) {
	switch name {
	case "/":
		m.filtering = true
	case "enter":
		if q := m.chosen(); q != nil {
			m.queue, m.screen, m.scroll = q.Name, ofQueue, 0
		}
	case "s", ">":
		m.sortBy((m.query.order + 1) % orders)
	case "<":
		m.sortBy((m.query.order + orders - 1) % orders)
	case "r":
		m.query.reversed = !m.query.reversed
		m.toStart()
	default:
		m.cursor = max(m.cursor+move(name, m.rows()-1), 0)
		if name == "end" || name == "G" {
			m.cursor = max(m.page.total-1, 0)
		}
	}
}

func move(name string, page int) int {
	switch name {
	case "up", "k":
		return -1
	case "down", "j":
		return 1
	case "pgup":
		return -max(page, 1)
	case "pgdown", "space":
		return max(page, 1)
	case "home", "g":
		return -1 << 30
	}
	return 0
}

func (m *model) sortBy(o order) {
	m.query.order, m.query.reversed = o, false
	m.toStart()
}

func (m *model) toStart() { m.cursor, m.first, m.query.offset = 0, 0, 0 }

func (m *model) filter(contains string) {
	m.query.contains = contains
	m.toStart()
}

func (m *model) typed(name, text string) {
	switch name {
	case "enter":
		m.filtering = false
	case "esc":
		m.filtering = false
		m.filter("")
	case "backspace":
		_, size := utf8.DecodeLastRuneInString(m.query.contains)
		m.filter(m.query.contains[:len(m.query.contains)-size])
	case "up", "down", "pgup", "pgdown":
		m.cursor = max(m.cursor+move(name, m.rows()-1), 0)
	default:
		m.filter(m.query.contains + text)
	}
}

// prompt asks for confirmation of the action of a key. If the action is not possible or not permitted, it displays the
// reason instead.
func (m *model) prompt(name string) {
	refuse := func(reason string) { m.shownText, m.failed = reason, true }
	pair := m.status.status.Pair
	switch {
	case m.busy != "":
		refuse("wait: " + m.busy)
	case !m.reported || pair == nil:
		refuse("switchover and pause require a pair: no node of a pair responds")
	case !m.operate:
		refuse("switchover and pause require the operate right, which is not confirmed for this caller: " +
			"lockstep access whoami")
	case name == "S":
		m.asking = &question{
			text: fmt.Sprintf("Switch the active role from %s to %s? Clients pause briefly, no messages are lost. [y/N]",
				pair.Active, otherNode(&m.status.status)),
			yes: m.do.switchover, busy: "switching over …",
		}
	case pair.Paused != "":
		m.asking = &question{
			text: "Resume the pair? Automatic failover will be enabled. [y/N]",
			yes:  func() tea.Cmd { return m.do.pause(false) }, busy: "resuming …",
		}
	default:
		m.asking = &question{
			text: "Pause the pair? Automatic failover will be disabled: if the active fails, " +
				"no node serves until the pair is resumed. [y/N]",
			yes: func() tea.Cmd { return m.do.pause(true) }, busy: "pausing …",
		}
	}
}

func otherNode(s *pairstatus.Status) string {
	for i := range s.Nodes {
		if n := &s.Nodes[i]; n.Name != "" && n.Name != s.Pair.Active {
			return n.Name
		}
	}
	for _, name := range s.Pair.InSync {
		if name != s.Pair.Active {
			return name
		}
	}
	return "the other node"
}

// answer handles the key at a prompt. Only y confirms.
func (m *model) answer(name string) tea.Cmd {
	q := m.asking
	m.asking = nil
	if !strings.EqualFold(name, "y") {
		m.shownText, m.failed = "aborted, no changes made", false
		return nil
	}
	m.busy, m.shownText = q.busy, ""
	return q.yes()
}

func (m *model) at() string { return m.status.at.Format(time.TimeOnly) }
