// SPDX-License-Identifier: Apache-2.0

// Package console is a web page for operators, which a node serves on console.listen.
//
// It is a client of the node: everything that it shows and does goes through the node's gRPC services, over a
// connection within the process (server/inprocess) that carries what the browser has shown, so that rules, quotas,
// limits and the audit hold as for any client. The code here imports proto/lockstep/v1 and no service.
//
// console.go is the port, http.go what stands before every request (headers, origin, session, CSRF), signin.go and
// session.go who it is, view.go the connections, page.go pages and actions, hub.go the live parts, errors.go what a
// person is told of a gRPC status, render.go and format.go templates and assets.
//
// # A new page
//
// A page is a function in a file of its own, page_name.go, that returns a Page, a line in pages (page.go), and a file
// templates/name.html. The file defines "content", with .D (what Load has returned), .Query and the fields of Layout;
// and, if the page is Live, "live", which gets only what Load returns and is made once a second for all browsers that
// show the page to the same identity:
//
//	{{define "content"}}
//	<h1>Queues</h1>
//	<div id="failure" sse-swap="failure" hx-swap="innerHTML"></div>
//	<div id="live" sse-swap="live" hx-swap="patch">{{template "live" .D}}</div>
//	{{end}}
//	{{define "live"}}…{{end}}
//
// Only what differs is replaced in the browser (console.js); give rows that come and go a data-key. All of what a page
// shows is in its query: Load reads it with View.Get. Names of anything, such as queues, go into the query, too, not
// into the path.
//
// Load and Do get a View. pb.NewQueueServiceClient(conn) with the conn of View.Active is right for queues; View.Own is
// this node, View.Node one of the two by name. Errors are returned as they come: describe (errors.go) makes text of
// them; invalid("…") is for what was filled in wrongly.
//
// An Action is a POST to the page's path, "/" and its name. A button that opens its dialogue is
//
//	<a class="button" {{dialog "/queue/purge" "name" .Name}}>Purge</a>
//
// and the template that Action.Dialog names (in the page's file) has the fields, no form and no buttons:
//
//	{{define "purge"}}<p>All {{number .D.Messages}} messages are deleted.</p>
//	<div class="field"><label for="confirm">Type {{.D.Name}}</label><input id="confirm" name="confirm"
//	 data-confirm="{{.D.Name}}" required></div>{{end}}
//
// data-confirm keeps the button disabled until the text was typed; Do has to check it again. What was filled in before
// is in .Form ({{.Form.Get "name"}}). An action without a dialogue is a form of the page with method=post and
//
//	<input type="hidden" name="csrf" value="{{.CSRF}}">
//
// outside of "live", or, within it, a button with hx-post: the token is in a header then.
//
// Parts for all templates are in templates/parts.html (badge, bar, failure, empty), functions in format.go (bytes,
// number, ago, time, took, percent, json, dialog, link, dict). A chart is
//
//	<div class="chart" data-chart="{{json .Chart}}"></div>
//
// with {"kind":"lines","unit":"number"|"bytes","x":[unix seconds],"series":[{"label":"…","values":[…]}]}, or
// {"kind":"bars","x":[0,1,…],"labels":["…"],…}. No style attributes and no scripts within pages: the policy forbids
// them.
package console
