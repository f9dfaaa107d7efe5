// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

// Package console_test tests the console in a real browser, with a real pair and failures of its nodes.
package console_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// world is a pair with a console on each node, and a binary for commands.
type world struct {
	t       *testing.T
	binary  string
	pair    *harness.Pair
	console map[string]string // address of a node's console, by the node's name
	token   string
}

// startOpen starts the pair without rules.
func startOpen(t *testing.T, more map[string]string) *world {
	t.Helper()
	w := &world{t: t, binary: os.Getenv("LOCKSTEP_BINARY"), console: map[string]string{}}
	if w.binary == "" {
		w.binary = filepath.Join(t.TempDir(), "lockstep")
		out, err := exec.CommandContext(t.Context(), "go", "build", "-o", w.binary,
			"github.com/lockstep-mq/lockstep/cmd/lockstep").CombinedOutput()
		require.NoError(t, err, string(out))
	}
	settings := map[string]map[string]string{}
	for _, name := range []string{"a", "b"} {
		port, err := harness.ReservePort()
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, port.Close()) })
		settings[name] = map[string]string{"console.listen": port.Address()}
		w.console[name] = "http://" + port.Address()
	}
	all := harness.SmallNodes()
	maps.Copy(all, more)
	var err error
	w.pair, err = harness.Start(t.Context(), harness.Options{
		Binary: w.binary, Dir: t.TempDir(), EtcdNoSync: true, Settings: all, NodeSettings: settings,
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.pair.KillAll()) })
	w.inSync()
	return w
}

// startWorld starts the pair with rules: root has all rights, and reader may browse.
func startWorld(t *testing.T) (w *world, root, reader string) {
	t.Helper()
	w = startOpen(t, map[string]string{"access.operators": "root"})
	root = w.makeToken("root")
	reader = w.makeToken("reader")
	w.token = root
	w.run("access", "grant", "root", "publish,consume,browse,manage", "--queue", "*")
	w.run("access", "grant", "root", "operate,audit")
	w.run("access", "grant", "reader", "browse", "--queue", "*")
	// permit status requests, which this test sends
	w.run("access", "grant", "anonymous", "browse", "--queue", "nothing")
	return w, root, reader
}

func (w *world) makeToken(principal string) string {
	w.t.Helper()
	out := w.run("access", "token", "create", principal+"-1", "--principal", principal)
	at := strings.Index(out, "lsk_")
	require.GreaterOrEqual(w.t, at, 0, out)
	return strings.Fields(out[at:])[0]
}

// inSync waits until both nodes are in sync.
func (w *world) inSync() (active, standby *harness.Node) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), bound)
	defer cancel()
	active, standby, err := w.pair.WaitInSync(ctx)
	require.NoError(w.t, err)
	return active, standby
}

// rootContext returns a context for calls of root.
func (w *world) rootContext() context.Context {
	return metadata.AppendToOutgoingContext(w.t.Context(), "authorization", "Bearer "+w.token)
}

// run runs a command, which must succeed.
func (w *world) run(args ...string) string {
	w.t.Helper()
	out, err := w.try(args...)
	require.NoError(w.t, err, "%v: %s", args, out)
	return out
}

func (w *world) try(args ...string) (string, error) {
	if args[0] != "status" { // with a timeout, this command would wait for a killed node
		args = append(args, "--timeout="+bound.String())
	}
	cmd := exec.CommandContext(w.t.Context(), w.binary, args...)
	cmd.Env = append(harness.Environment(), "LOCKSTEP_ADDR="+strings.Join(w.pair.Addresses(), ","),
		"LOCKSTEP_TOKEN="+w.token)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// An operator's typical operations work in the console. The test requires LOCKSTEP_BROWSER, the path of a Chromium.
// LOCKSTEP_SCREENSHOTS is a directory for screenshots of every page.
func TestConsole(t *testing.T) {
	program := os.Getenv("LOCKSTEP_BROWSER")
	if program == "" {
		t.Skip("LOCKSTEP_BROWSER is not set: see test/console/run.sh")
	}
	w, root, reader := startWorld(t)
	active, standby := w.inSync()
	chromium := browser(t, program)
	onActive := newTab(chromium, t, w.console[active.Name])
	onActive.signIn(root)

	w.queues(onActive)
	onStandby := newTab(chromium, t, w.console[standby.Name])
	onStandby.signIn(root)
	w.messages(onStandby, active) // a standby's console forwards operations to the active
	// Use another host name, which has separate cookies.
	w.permissions(newTab(chromium, t, strings.Replace(w.console[active.Name], "127.0.0.1", "localhost", 1)), reader)
	w.tableWidths(onActive)
	w.scan(onActive, active)
	w.check(onActive, active)
	w.screenshots(onActive)
	onActive.requireNoErrors()
	w.resize(onStandby, active)
	w.switchover(onStandby)
	w.killedNode(onStandby, standby)
	onStandby.requireNoErrors()
}

// queues: a queue is created on the page, and messages published by the command line are shown.
func (w *world) queues(b *tab) {
	b.open("/queues")
	b.click(`a[href="/queues/create"]`)
	b.run(chromedp.WaitVisible("#dialog #name"), chromedp.SendKeys("#dialog #name", "orders"))
	b.click("#dialog button[type=submit]")
	b.run(chromedp.WaitVisible("#depth"))
	w.run("queue", "create", "orders.later")
	for n := 1; n <= 3; n++ {
		w.run("publish", "orders", fmt.Sprintf(`{"order":%d,"items":["pen","ink"]}`, n), "--property", "region=eu",
			"--content-type", "application/json")
		took := b.until(fmt.Sprintf("document.querySelector('#depth').innerText === '%d'", n))
		w.t.Logf("the page shows message %d %v after it was published", n, took.Round(time.Millisecond))
	}
	b.until("document.querySelectorAll('.chart canvas').length === 3")
	b.open("/queues?search=LATER")
	b.until(has("#live tbody", "orders.later"))
	require.False(w.t, func() (found bool) {
		b.run(chromedp.Evaluate("document.querySelectorAll('#live tbody tr').length !== 1", &found))
		return found
	}())
	require.Contains(w.t, publishOn(b, "orders", "a message"), "as sequence 4")
}

// publishOn publishes a message on the page of a queue.
func publishOn(b *tab, queue, body string) string {
	b.open("/queue?name=" + queue)
	return b.dialog(`a[href^="/queue/publish"]`, map[string]string{"#body": body})
}

// messages: messages are browsed, decoded, moved and deleted.
func (w *world) messages(b *tab, active *harness.Node) {
	b.open("/messages?name=orders")
	b.until(has("#rows", "a message"))
	b.click(`#rows a[href^="/message?"][href*="sequence=2"]`)
	b.run(chromedp.WaitVisible("#json"))
	b.until(has("#json", `"order": 2`))
	b.until(has("#hex", "7b 22 6f 72"))
	b.until(has("main", "eu"))
	b.open("/messages?name=orders")
	choose := func(sequences ...int) {
		for _, n := range sequences {
			b.click(fmt.Sprintf(`#rows input[name=sequence][value="%d"]`, n))
		}
	}
	choose(1, 3)
	require.Contains(w.t, b.dialog(`#messages button[formaction="/messages/move"]`, map[string]string{
		"#to": "orders.later",
	}), "Moved 2 of 2")
	b.until(rows(2))
	choose(4)
	require.Contains(w.t, b.dialog(`#messages button[formaction="/messages/remove"]`, nil), "Deleted 1 of 1")
	b.until(rows(1))

	// New messages do not change the rows until the page is refreshed.
	w.run("publish", "orders", "late")
	b.until(has("#live", "1 newer"))
	b.until(rows(1))
	b.click("#live a")
	b.until(rows(2))
	b.click("#rows [data-select-all]")
	b.until("document.querySelectorAll('#rows input[name=sequence]:checked').length === 2")
	require.Contains(w.t, b.dialog(`#rows a[href^="/messages/remove"][href*="sequence=5"]`, nil), "Deleted 1 of 1")
	b.until(rows(1))
	q, err := pb.NewQueueServiceClient(active.Conn()).GetQueue(w.rootContext(), &pb.GetQueueRequest{Name: "orders.later"})
	require.NoError(w.t, err)
	require.Equal(w.t, uint64(2), q.GetQueue().GetMessages())
}

// rows returns a script that reports whether the page Messages has n rows.
func rows(n int) string {
	return fmt.Sprintf("document.querySelectorAll('#rows tbody tr').length === %d", n)
}

// tableWidths: each queue uses three lines on a narrow screen, and no table is clipped on a normal screen.
func (w *world) tableWidths(b *tab) {
	b.run(emulation.SetDeviceMetricsOverride(390, 900, 1, false))
	b.open("/queues")
	b.until("document.body.classList.contains('labelled')")
	var lines, hidden int
	b.run(chromedp.Evaluate("Math.max(...Array.from(document.querySelectorAll('.compact tbody tr')).map(function (r) { "+
		"return new Set(Array.from(r.cells).map(function (c) { return c.offsetTop; })).size; }))", &lines))
	require.Equal(w.t, 3, lines)
	b.run(emulation.SetDeviceMetricsOverride(1440, 900, 1, false))
	for _, page := range []string{"/connections", "/queues", "/messages?name=orders"} {
		b.open(page)
		b.until("document.querySelector('.table')")
		b.run(chromedp.Evaluate("Math.max(...Array.from(document.querySelectorAll('.table')).map(function (t) { "+
			"return t.scrollWidth - t.clientWidth; }))", &hidden))
		require.LessOrEqual(w.t, hidden, 0, page)
	}
}

// permissions: a reader sees queues and messages, but no controls for operations without permission.
func (w *world) permissions(b *tab, token string) {
	b.signIn(token)
	b.open("/queue?name=orders")
	b.until(has("#depth", "1"))
	for _, action := range []string{"publish", "configure", "purge", "delete", "seek"} {
		b.until("!document.querySelector('a[href^=\"/queue/" + action + "\"]')")
	}
	for _, page := range []string{"/connections", "/store", "/access", "/audit", "/prepared"} {
		b.open(page)
		b.until(has("main", "Permission denied"))
	}
	b.open("/queue?name=orders")
	b.until(has("#depth", "1"))
	b.requireNoErrors()
}

// scan: a scan is started on the page, and its histogram is drawn.
func (w *world) scan(b *tab, active *harness.Node) {
	w.run("queue", "create", "load")
	messages := make([]*pb.Message, 500)
	for i := range messages {
		messages[i] = &pb.Message{Body: bytes.Repeat([]byte("x"), 300+10*i)}
	}
	queues := pb.NewQueueServiceClient(active.Conn())
	for range 4 {
		_, err := queues.Publish(w.rootContext(), &pb.PublishRequest{Queue: "load", Messages: messages})
		require.NoError(w.t, err)
	}
	b.open("/store")
	id := w.nodeID(active)
	require.NotEmpty(w.t, b.dialog(`a[href^="/store/scan?node=`+id+`"]`, nil))
	b.until("document.querySelector('ul.tasks a[href^=\"/scan\"]')")
	b.click(`ul.tasks a[href^="/scan"]`)
	b.run(chromedp.WaitVisible(".chart canvas"))
	b.until(has("main", "recommended"))
}

// check: a backup is created and verified on the page, and the map of the page file is drawn.
func (w *world) check(b *tab, active *harness.Node) {
	w.run("store", "settings", "set", "backup.path", w.t.TempDir())
	id := w.nodeID(active)
	b.open("/backups")
	require.NotEmpty(w.t, b.dialog(`a[href^="/backups/start?node=`+id+`"]`, nil))
	b.until(has("ul.tasks", "Created backup "))
	b.open("/backups")
	require.NotEmpty(w.t, b.dialog(`a[href^="/backups/check?node=`+id+`"]`, nil))
	b.until(has("ul.tasks", "Restorable: "))
	b.open("/backups")
	b.until(has("main", "restorable"))
	b.open("/map?node=" + id)
	b.until("document.querySelectorAll('svg.page-map rect.messages').length > 10")
}

func (w *world) nodeID(n *harness.Node) string {
	w.t.Helper()
	st, err := n.Status(w.rootContext())
	require.NoError(w.t, err)
	return st.GetNode().GetNodeId()
}

// resize: a rolling resize is started on the page of the standby. The active is killed during the resize, and
// restarted. The page shows the resize to its end.
func (w *world) resize(b *tab, active *harness.Node) {
	b.open("/store")
	require.NotEmpty(w.t, b.dialog(`a[href^="/store/resize"]`, map[string]string{"#page_size": "4096"}))
	b.until("document.querySelector('ol.steps')")
	require.NoError(w.t, active.Kill())
	b.until("document.querySelectorAll('.card').length > 0")
	require.NoError(w.t, active.Start())
	b.until("document.querySelectorAll('ol.steps li').length > 0 && " +
		"Array.from(document.querySelectorAll('ol.steps li')).every(function (s) { return " +
		"s.classList.contains('good'); })")
	w.inSync()
	for _, n := range w.pair.Nodes {
		st, err := n.Status(w.rootContext())
		require.NoError(w.t, err)
		require.Equal(w.t, uint32(4096), st.GetStore().GetPageSize(), n.Name)
	}
}

// switchover: the page shows the changed roles.
func (w *world) switchover(b *tab) {
	var standby *harness.Node
	for start := time.Now(); ; {
		var active *harness.Node
		active, standby = w.inSync()
		b.open("/pair")
		b.until(has(`section[aria-label="Node `+active.Name+`"]`, "active"))
		text := b.dialog(`a[href^="/pair/switchover"]`, nil)
		if !b.failed() {
			break
		}
		// On a busy machine, the standby may be briefly out of sync, or the coordinator unreachable.
		require.Less(w.t, time.Since(start), bound, text)
	}
	b.until(has(`section[aria-label="Node `+standby.Name+`"] .badge`, "active"))
	now, _ := w.inSync()
	require.Equal(w.t, standby.Name, now.Name)
}

// killedNode: a killed node is shown in red.
func (w *world) killedNode(b *tab, own *harness.Node) {
	other := w.pair.Other(own)
	b.open("/pair")
	card := fmt.Sprintf("document.querySelector('section[aria-label=\"Node %s\"]').classList.contains('bad')",
		other.Name)
	b.until("!" + card)
	require.NoError(w.t, other.Kill())
	took := b.until(card)
	w.t.Logf("the killed node is red after %v", took.Round(time.Millisecond))
	require.NoError(w.t, other.Start())
	w.inSync()
	b.until("!" + card)
}

// The active continues without a standby, and is then lost. The page of the other node shows the possible loss,
// requires the node's name, and makes the node active. Then the pair reports an unresolved forced failover.
func TestForcedFailoverPage(t *testing.T) {
	program := os.Getenv("LOCKSTEP_BROWSER")
	if program == "" {
		t.Skip("LOCKSTEP_BROWSER is not set: see test/console/run.sh")
	}
	w := startOpen(t, nil)
	active, standby := w.inSync()
	w.run("queue", "create", "orders")
	w.run("publish", "orders", "on both")
	require.NoError(t, standby.Kill())
	w.run("publish", "orders", "on one")
	require.NoError(t, active.Kill())
	require.NoError(t, standby.Start())
	b := newTab(browser(t, program), t, w.console[standby.Name])
	b.open("/pair")
	opener := `a[href^="/pair/force?node="]`
	b.click(opener)
	b.run(chromedp.WaitVisible("#dialog #confirm", chromedp.ByQuery))
	for _, want := range []string{
		"Acknowledged messages may be lost", "from LSN",
		"Node " + standby.Name + " becomes active, but may not have all messages",
		"only if " + active.Name + " is permanently lost",
	} {
		require.True(t, func() (found bool) {
			b.run(chromedp.Evaluate(has("#dialog", want), &found))
			return found
		}(), want+"\n"+b.shownText())
	}
	var disabled bool
	b.run(chromedp.Evaluate("document.querySelector('#dialog button[type=submit]').disabled", &disabled))
	require.True(t, disabled, "enabled without a name")
	b.run(chromedp.SendKeys("#dialog #confirm", active.Name, chromedp.ByQuery),
		chromedp.Evaluate("document.querySelector('#dialog button[type=submit]').disabled", &disabled))
	require.True(t, disabled, "enabled with the other node's name")
	b.run(chromedp.Evaluate("document.querySelector('#dialog #confirm').value = ''", nil),
		chromedp.SendKeys("#dialog #reason", "a test", chromedp.ByQuery),
		chromedp.SendKeys("#dialog #confirm", standby.Name, chromedp.ByQuery))
	b.click("#dialog button[type=submit]")
	b.until(has("body", "Node "+standby.Name+" becomes active in term"))
	b.until(has(`section[aria-label="Node `+standby.Name+`"] .badge`, "active"))
	b.until(has("main", "A failover was forced"))
	require.Contains(t, w.run("status"), "forced-failover-unresolved")
	b.open("/alarms")
	b.until(has("main", "forced-failover-unresolved"))
	b.requireNoErrors()
}

// screenshots takes screenshots of every page, if enabled.
func (w *world) screenshots(b *tab) {
	directory := os.Getenv("LOCKSTEP_SCREENSHOTS")
	if directory == "" {
		return
	}
	for i := range 12 {
		w.run("queue", "create", fmt.Sprintf("team-%c/invoices.%02d", 'a'+i%3, i))
	}
	for _, page := range []struct{ name, path string }{
		{"pair", "/pair"},
		{"alarms", "/alarms"},
		{"queues", "/queues?sort=messages&order=descending"},
		{"queue", "/queue?name=load"},
		{"messages", "/messages?name=orders.later"},
		{"message", "/message?name=orders.later&sequence=1"},
		{"store", "/store"},
		{"backups", "/backups"},
		{"map", "/map"},
		{"scan", "/scan"},
		{"jobs", "/jobs"},
		{"connections", "/connections"},
		{"prepared", "/prepared"},
		{"access", "/access"},
		{"audit", "/audit"},
	} {
		b.screenshot(directory, page.name, page.path)
	}
}
