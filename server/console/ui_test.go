// SPDX-License-Identifier: Apache-2.0

package console_test

import (
	"errors"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/console"
)

var (
	submitButton = regexp.MustCompile(`<button type="submit" class="(?:danger|primary)"[^>]*>`)
	sseAddress   = regexp.MustCompile(`sse-connect="/events([^"]+)"`)
	badgeOf      = regexp.MustCompile(`(?s)id="alarms".*?</a>`)
	anyTag       = regexp.MustCompile(`<[^>]*>`)
)

// The server renders the submit button of a dialog as disabled if the user must type a name, even if the dialog
// is shown again after a failure. Other dialogs can be submitted immediately.
func TestConfirmedActionsAreDisabled(t *testing.T) { simulated(t, testConfirmedActionsAreDisabled) }

func testConfirmedActionsAreDisabled(t *testing.T) {
	ready := startNode(t, nil)
	b := newBrowser(t, ready.Console)
	b.waitActive()
	b.act("/queues/create", url.Values{"name": {"orders"}})
	confirmed := map[string]bool{}
	for _, p := range console.Pages() {
		for _, action := range p.Actions {
			at := p.Path + "/" + action.Name
			if action.Confirm {
				confirmed[at] = true
			}
			body := b.get(at + "?name=orders&xid=x&sequence=1&node=").body
			button := submitButton.FindString(body)
			if button == "" {
				continue // this state does not permit the dialog
			}
			require.Equal(t, action.Confirm, strings.Contains(button, " disabled"), at)
			require.Equal(t, action.Confirm, strings.Contains(body, " data-confirm="), at)
		}
	}
	require.Equal(t, map[string]bool{
		"/pair/force": true, "/queue/purge": true, "/queue/delete": true, "/prepared/commit": true,
		"/prepared/rollback": true,
	}, confirmed)
	for _, at := range []string{"/queue/purge?name=orders", "/queue/delete?name=orders"} {
		a := b.post(at, url.Values{"csrf": {b.csrf()}, "confirm": {"order"}}, htmx)
		require.Equal(t, http.StatusBadRequest, a.code)
		require.Contains(t, submitButton.FindString(a.body), " disabled", at)
	}
}

// Pages contain only actions, and menus only entries, for which the session has the right.
func TestOnlyPermittedActionsAreOffered(t *testing.T) {
	simulated(t, testOnlyPermittedActionsAreOffered)
}

func testOnlyPermittedActionsAreOffered(t *testing.T) {
	ready := startNode(t, func(c *config.Config) { c.Access.Operators = []string{"root"} })
	anonymous := newBrowser(t, ready.Console)
	anonymous.waitActive()
	tokens := map[string]string{}
	for _, identity := range []string{"root", "reader", "sender"} {
		tokens[identity] = anonymous.makeToken(identity+"-1", identity)
	}
	anonymous.act("/queues/create", url.Values{"name": {"orders"}})
	anonymous.act("/queue/publish?name=orders", url.Values{"body": {"x"}})
	anonymous.act("/access/grant", url.Values{
		"kind": {"principal"}, "subject": {"reader"}, "queue": {"*"}, "right": {"browse"}, "lock_out": {"1"},
	})
	root, reader, sender := newBrowser(t, ready.Console), newBrowser(t, ready.Console), newBrowser(t, ready.Console)
	require.Equal(t, "/pair", root.signIn(tokens["root"]).at)
	require.Equal(t, "/pair", reader.signIn(tokens["reader"]).at)
	root.act("/access/grant", url.Values{
		"kind": {"principal"}, "subject": {"sender"}, "queue": {"orders"}, "right": {"browse", "publish"},
	})
	require.Equal(t, "/pair", sender.signIn(tokens["sender"]).at)

	for path, actions := range map[string][]string{
		"/queues":               {"/queues/create"},
		"/queue?name=orders":    {"/queue/publish", "/queue/configure", "/queue/purge", "/queue/delete", "/queue/seek"},
		"/messages?name=orders": {"/messages/move", "/messages/remove", `name="sequence"`},
		"/message?name=orders&sequence=1": {
			"/messages/move", "/messages/remove",
		},
	} {
		all, some, sent := root.get(path), reader.get(path), sender.get(path)
		require.Equal(t, http.StatusOK, some.code, path)
		for _, action := range actions {
			opener := `"` + action
			if strings.HasPrefix(action, "name") {
				opener = action
			}
			require.Contains(t, all.body, opener, path)
			require.NotContains(t, some.body, opener, path)
			require.Equal(t, action == "/queue/publish", strings.Contains(sent.body, opener), path+" "+action)
		}
	}
	for _, page := range []string{"/store", "/backups", "/jobs", "/connections", "/prepared", "/access", "/audit"} {
		entry := `<li><a href="` + page + `"`
		require.Contains(t, root.get("/queues").body, entry)
		require.NotContains(t, reader.get("/queues").body, entry)
	}
	require.NotContains(t, reader.event("/queue?name=orders"), "/queue/purge")
	require.Contains(t, root.get("/queue?name=orders").body, `<a class="button" href="/queue/publish?name=orders"`)
}

// The switchover is offered only to operators, and not as the primary button.
func TestSwitchoverIsOffered(t *testing.T) { simulated(t, testSwitchoverIsOffered) }

func testSwitchoverIsOffered(t *testing.T) {
	active, _ := startPairWith(t, func(c *config.Config) { c.Access.Operators = []string{"root"} }, func(*browser) {})
	require.Contains(t, active.get("/pair").body, `<a class="button" href="/pair/switchover"`)
	root, reader := active.makeToken("root-1", "root"), active.makeToken("reader-1", "reader")
	active.act("/access/grant", url.Values{
		"kind": {"principal"}, "subject": {"reader"}, "queue": {"*"}, "right": {"browse"}, "lock_out": {"1"},
	})
	for token, offered := range map[string]bool{root: true, reader: false} {
		b := newBrowser(t, active.ready.Console)
		require.Equal(t, "/pair", b.signIn(token).at)
		require.Equal(t, offered, strings.Contains(b.get("/pair").body, `"/pair/switchover"`))
		require.Equal(t, offered, strings.Contains(b.get("/pair").body, `"/pair/pause"`))
		require.Equal(t, offered, strings.Contains(b.event("/pair"), `"/pair/switchover"`))
	}
}

// The Messages page can filter messages in both orders. New messages do not change the content of a page.
func TestMessagesPageSearches(t *testing.T) { simulated(t, testMessagesPageSearches) }

func testMessagesPageSearches(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	b.waitActive()
	b.act("/queues/create", url.Values{"name": {"orders"}})
	b.act("/queue/publish?name=orders", url.Values{"body": {`{"customer": {"id": "1"}}`}, "count": {"60"}})
	b.act("/queue/publish?name=orders", url.Values{"body": {`{"customer": {"id": "2"}}`}, "count": {"3"}})
	address := func(values ...string) string {
		q := url.Values{"name": {"orders"}}
		for i := 0; i < len(values); i += 2 {
			q.Set(values[i], values[i+1])
		}
		return "/messages?" + q.Encode()
	}
	rows := func(page string) (list []string) {
		for _, m := range regexp.MustCompile(`name="sequence" value="(\d+)"`).FindAllStringSubmatch(page, -1) {
			list = append(list, m[1])
		}
		return list
	}
	byID := `body.customer.id == "2"`
	page := b.get(address("filter", byID)).body
	require.Equal(t, []string{"61", "62", "63"}, rows(page))
	require.NotContains(t, page, `rel="next"`)
	require.Contains(t, html.UnescapeString(page), byID)
	require.Regexp(t, `href="/messages/remove\?[^"]*filter=body[^"]*sequence=61[&"]`, page)
	page = b.get(address("filter", byID, "order", "newest")).body
	require.Equal(t, []string{"63", "62", "61"}, rows(page))

	first := b.get(address("order", "newest")).body
	require.Len(t, rows(first), 50)
	require.Equal(t, "63", rows(first)[0])
	next := html.UnescapeString(regexp.MustCompile(`href="([^"]*)" rel="next"`).FindStringSubmatch(first)[1])
	second := rows(b.get(next).body)
	b.act("/queue/publish?name=orders", url.Values{"body": {"new"}, "count": {"2"}})
	require.Equal(t, second, rows(b.get(next).body))
	require.Equal(t, "13", second[0])
	require.Equal(t, "1", second[12])

	page = b.get(address("filter", `body.customer.id =`)).body
	require.Contains(t, page, "1:18:")
	require.Empty(t, rows(page))
	a := b.act("/messages/remove?name=orders&filter=true&order=newest&before=13&sequence=5", nil)
	require.Equal(t, "/messages?before=13&filter=true&name=orders&order=newest", a.head.Get("Hx-Redirect"))
}

// The live part contains only the number of newer messages, so events do not change the rows.
func TestMessagesPageIsStable(t *testing.T) { simulated(t, testMessagesPageIsStable) }

func testMessagesPageIsStable(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	b.waitActive()
	b.act("/queues/create", url.Values{"name": {"orders"}})
	b.act("/queue/publish?name=orders", url.Values{"body": {"x"}, "count": {"60"}})
	page := b.get("/messages?name=orders").body
	live, rows, found := strings.Cut(page, `<form id="messages"`)
	require.True(t, found)
	_, live, found = strings.Cut(live, `id="live"`)
	require.True(t, found)
	require.NotContains(t, live, "newer")
	require.NotContains(t, rows, "sse-swap")
	require.Equal(t, 50, strings.Count(rows, `name="sequence"`))
	require.Contains(t, rows, `data-select-all="sequence"`)
	require.Contains(t, rows, `href="/messages?from=51&amp;name=orders"`)
	require.Contains(t, rows, `href="/messages?from=11&amp;name=orders">Newest`)
	require.Regexp(t, `href="/messages/move\?[^"]*sequence=7[&"]`, rows)
	require.Regexp(t, `href="/messages/remove\?[^"]*sequence=7[&"]`, rows)
	require.NotContains(t, rows, "Dead-letter reason")

	events := html.UnescapeString(sseAddress.FindStringSubmatch(page)[1])
	require.NotContains(t, b.event(events), "newer")
	b.act("/queue/publish?name=orders", url.Values{"body": {"y"}, "count": {"2"}})
	event := b.event(events)
	require.Contains(t, event, "<b>2 newer</b>")
	require.Contains(t, event, `<a href="/messages?name=orders">refresh</a>`)
	require.NotContains(t, event, `name="sequence"`)
	require.NotContains(t, b.event(html.UnescapeString(
		sseAddress.FindStringSubmatch(b.get("/messages?name=orders&from=51").body)[1])), "newer")

	// After an action, the page on which the messages were selected is loaded again.
	a := b.act("/messages/remove?name=orders&from=51&sequence=52", nil)
	require.Equal(t, "/messages?from=51&name=orders", a.head.Get("Hx-Redirect"))
	require.Contains(t, b.get("/messages?from=51&name=orders").body, "Deleted 1 of 1")

	one := b.get("/message?name=orders&sequence=7").body
	require.Regexp(t, `href="/messages/move\?[^"]*sequence=7[&"]`, one)
	require.Regexp(t, `href="/messages/remove\?[^"]*sequence=7[&"]`, one)

	b.act("/queue/delete?name=orders", url.Values{"confirm": {"orders"}})
	b.act("/queues/create", url.Values{"name": {"orders"}})
	require.Contains(t, b.event(events), "and recreated")
}

// The table of dead letters has columns for their reason and their origin.
func TestDeadLetterColumns(t *testing.T) { simulated(t, testDeadLetterColumns) }

func testDeadLetterColumns(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	b.waitActive()
	b.act("/queues/create", url.Values{"name": {"dead"}})
	b.act("/queues/create", url.Values{"name": {"orders"}})
	b.act("/queue/configure?name=orders", url.Values{
		"max_messages": {"1"}, "overflow": {"dead-letter-head"}, "dead_letter": {"dead"},
	})
	for range 2 {
		b.act("/queue/publish?name=orders", url.Values{"body": {"x"}})
	}
	var page string
	require.Eventually(t, func() bool {
		page = b.get("/messages?name=dead").body
		return strings.Contains(page, `name="sequence"`)
	}, time.Minute, 10*time.Millisecond)
	require.Contains(t, page, `<th scope="col">Dead-letter reason</th><th scope="col">Origin</th>`)
	require.Regexp(t, `<td>[a-z ]+</td><td class="break">orders, subscription default, sequence 1</td>`, page)
	require.Regexp(t, `href="/messages/replay\?[^"]*sequence=1[&"]`, page)
	require.Contains(t, b.get("/message?name=dead&sequence=1").body, `href="/messages/replay?`)
}

// Every page and every event stream contains the numbers of conditions by severity. This includes error pages.
func TestBadge(t *testing.T) { simulated(t, testBadge) }

func testBadge(t *testing.T) {
	active, _ := startPair(t)
	active.act("/pair/pause", nil)
	conn := connect(t, active.ready.Address)
	defer func() { require.NoError(t, conn.Close()) }()
	admin := pb.NewAdminServiceClient(conn)
	want := func() (badges []string, paused bool) {
		st, err := admin.GetStatus(t.Context(), &pb.GetStatusRequest{})
		require.NoError(t, err)
		n := map[pb.Severity]int{}
		for _, c := range st.GetConditions() {
			n[c.GetSeverity()]++
			paused = paused || c.GetKind() == "paused"
		}
		if c := n[pb.Severity_SEVERITY_CRITICAL]; c > 0 {
			badges = append(badges, strconv.Itoa(c)+" critical")
		}
		if c := n[pb.Severity_SEVERITY_WARNING]; c == 1 {
			badges = append(badges, "1 warning")
		} else if c > 0 {
			badges = append(badges, strconv.Itoa(c)+" warnings")
		}
		if c := n[pb.Severity_SEVERITY_INFO]; c > 0 {
			badges = append(badges, strconv.Itoa(c)+" info")
		}
		return badges, paused
	}
	text := func(body string) string {
		return strings.Join(strings.Fields(anyTag.ReplaceAllString("<a "+badgeOf.FindString(body), " ")), " ")
	}
	require.Eventually(t, func() bool {
		badges, paused := want()
		return paused && text(active.get("/pair").body) == strings.Join(badges, " ")
	}, time.Minute, 20*time.Millisecond)
	for _, p := range console.Pages() {
		require.Contains(t, text(active.get(p.Path).body), " info", p.Path)
	}
	require.Contains(t, text(active.get("/nowhere").body), " info")
	require.Regexp(t, `(?s)event: alarms\ndata: [^\n]* info.*event: live`, active.event("/queues"))
}

// The Backups page is in the menu and has a keyboard shortcut.
func TestBackupsAreInTheMenu(t *testing.T) { simulated(t, testBackupsAreInTheMenu) }

func testBackupsAreInTheMenu(t *testing.T) {
	page := newBrowser(t, startNode(t, nil).Console).get("/backups").body
	require.Contains(t, page, `<li><a href="/backups" aria-current="page">Backups</a></li>`)
	require.Contains(t, page, `data-goto="/backups"`)
}

// Error texts that gRPC has generated are replaced. Error texts of a node are not changed.
func TestErrorText(t *testing.T) {
	refused := status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp `+
		`127.0.0.1:7401: connect: connection refused"`)
	for _, tt := range []struct {
		err  error
		want string
	}{
		{refused, "Connection refused by the node."},
		{fmt.Errorf("cannot reach node b: %w", refused), "cannot reach node b: connection refused by the node"},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), "The connection to the node failed."},
		{status.Error(codes.Unavailable, "the connection is draining"), "The connection to the node failed."},
		{status.Error(codes.Canceled, "grpc: the client connection is closing"), "The connection to the node failed."},
		{
			status.Error(codes.Unavailable, `connection error: desc = "transport: authentication handshake failed: `+
				`tls: failed to verify certificate: x509: certificate has expired"`),
			"The TLS handshake with the node failed: tls: failed to verify certificate: x509: certificate has expired.",
		},
		{
			status.Error(codes.DeadlineExceeded, "received context error while waiting for new LB policy update: context "+
				"deadline exceeded"), "Timeout while waiting for the node.",
		},
		{status.Error(codes.DeadlineExceeded, "context deadline exceeded"), "Timeout while waiting for the node."},
		{
			status.Error(codes.ResourceExhausted, "grpc: received message larger than max (5 vs. 4)"),
			"Message too large for one request.",
		},
		{
			status.Error(codes.Unimplemented, "unknown method Do for service lockstep.v1.AdminService"),
			"Request not supported by the node.",
		},
		{
			status.Error(codes.Internal, "stream terminated by RST_STREAM with error code: CANCEL"),
			"The connection to the node failed.",
		},
		{status.Error(codes.NotFound, `queue not found: "x"`), `queue not found: "x"`},
		{errors.New(`the pair has no node "x"`), `the pair has no node "x"`},
	} {
		require.Equal(t, tt.want, console.ErrorText(tt.err))
	}
}

func withReason(t *testing.T, r pb.ErrorReason) error {
	t.Helper()
	st, err := status.New(reason.Code(r), "").WithDetails(&errdetails.ErrorInfo{Reason: reason.Name(r)})
	require.NoError(t, err)
	return st.Err()
}

// The console advises to check the result before a retry, unless the reason of an error proves that nothing was
// executed. While an operation is in progress, it advises to wait.
func TestErrorAdvice(t *testing.T) {
	const check = "before you"
	for _, r := range []pb.ErrorReason{
		pb.ErrorReason_ERROR_REASON_NOT_ACTIVE, pb.ErrorReason_ERROR_REASON_BLOCKED,
		pb.ErrorReason_ERROR_REASON_SITE_LAG, pb.ErrorReason_ERROR_REASON_PAUSED,
	} {
		require.NotContains(t, console.ErrorAdvice(withReason(t, r)), check, r)
		require.Contains(t, console.ErrorAdvice(withReason(t, r)), "retry", r)
	}
	for _, err := range []error{
		withReason(t, pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN), withReason(t, pb.ErrorReason_ERROR_REASON_CANCELED),
		withReason(t, pb.ErrorReason_ERROR_REASON_SHUTTING_DOWN), withReason(t, pb.ErrorReason_ERROR_REASON_DEADLINE),
		status.Error(codes.Unavailable, "error reading from server: EOF"), status.Error(codes.Canceled, ""),
	} {
		require.Contains(t, console.ErrorAdvice(err), check, err)
	}
	require.Equal(t, "Outcome unknown", console.ErrorTitle(withReason(t, pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN)))
	require.Equal(t, "Already exists", console.ErrorTitle(withReason(t, pb.ErrorReason_ERROR_REASON_QUEUE_EXISTS)))
	for _, r := range []pb.ErrorReason{
		pb.ErrorReason_ERROR_REASON_BACKUP_BUSY, pb.ErrorReason_ERROR_REASON_PLAN_RUNNING,
		pb.ErrorReason_ERROR_REASON_JOB_RUNNING, pb.ErrorReason_ERROR_REASON_MAINTENANCE_BUSY,
	} {
		require.Equal(t, codes.AlreadyExists, reason.Code(r))
		require.Regexp(t, "^Wait ", console.ErrorAdvice(withReason(t, r)), r)
	}
}

// The token is entered in a password field, and Enter submits the form.
func TestSignInForm(t *testing.T) { simulated(t, testSignInForm) }

func testSignInForm(t *testing.T) {
	b := newBrowser(t, startNode(t, func(c *config.Config) { c.Access.Mode = "deny" }).Console)
	page := b.get("/sign-in").body
	require.Regexp(t, `<input type="password" id="token" name="token"[^>]* autofocus`, page)
	require.NotContains(t, page, "<textarea")
	first := regexp.MustCompile(`<button type="submit"[^>]*>`).FindString(page)
	require.NotEmpty(t, first)
	require.NotContains(t, first, "name=", "Enter presses the first submit button")
	require.Equal(t, http.StatusUnauthorized, b.signIn("lsk_wrong").code)
}

// Times are in ISO 8601 format. Charts of counts have a unit and integers on the axis.
func TestTimesAndCharts(t *testing.T) { simulated(t, testTimesAndCharts) }

func testTimesAndCharts(t *testing.T) {
	b := newBrowser(t, startNode(t, nil).Console)
	b.waitActive()
	b.act("/queues/create", url.Values{"name": {"orders"}})
	b.act("/queue/publish?name=orders", url.Values{"body": {"x"}, "message_ttl": {"24h"}})
	iso := regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z`)
	for _, path := range []string{"/messages?name=orders", "/message?name=orders&sequence=1", "/audit"} {
		page := b.get(path).body
		require.Regexp(t, iso, page, path)
		require.NotRegexp(t, `\d{4}-\d\d-\d\d \d\d:\d\d`, page, path)
	}
	for path, charts := range map[string]int{"/pair": 2, "/queue?name=orders": 3} {
		page := html.UnescapeString(b.get(path).body)
		require.Equal(t, charts, strings.Count(page, `data-chart="{`), path)
		require.Equal(t, 1, strings.Count(page, `"unit":"count"`), path)
	}
	require.Contains(t, console.Asset("console.js"), `c.unit === "count" ? { incrs: whole }`)
}

// The table of connections has seven columns and wraps lines at words. On a narrow screen, the table of queues
// uses the compact layout.
func TestTableLayout(t *testing.T) { simulated(t, testTableLayout) }

func testTableLayout(t *testing.T) {
	ready := startNode(t, nil)
	b := newBrowser(t, ready.Console)
	b.waitActive()
	conn := connect(t, ready.Address)
	defer func() { require.NoError(t, conn.Close()) }()
	_, err := pb.NewQueueServiceClient(conn).CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: "orders"})
	require.NoError(t, err)
	var page string
	require.Eventually(t, func() bool {
		page = b.get("/connections").body
		return strings.Contains(page, "<tbody>")
	}, time.Minute, 10*time.Millisecond)
	head, _, _ := strings.Cut(page, "</thead>")
	require.Equal(t, 7, strings.Count(head, "<th "))
	require.NotContains(t, page, `<td class="break">`)
	require.Contains(t, page, `<td class="words">`)

	page = b.get("/queues").body
	require.Contains(t, page, `class="table compact"`)
	require.Equal(t, 7, strings.Count(page, `<td class="num" data-short=`))
	css := console.Asset("console.css")
	require.Contains(t, css, ".labelled .table.compact tr { display: grid; grid-template-columns: repeat(12,")
}
