// SPDX-License-Identifier: Apache-2.0

// Package console implements the web console for operators, which a node serves on console.listen.
//
// The console is a client of the node: it uses the node's gRPC services over an in-process connection
// (server/api/inprocgrpc) with the credentials of the browser.
//
// http.go checks every request: its headers, origin, session and CSRF token. page.go contains the pages and actions,
// hub.go the live parts, errors.go the texts for gRPC statuses, and view.go the connections.
//
// # A new page
//
// A page consists of a function in a file page_name.go that returns a Page, an entry in pages (page.go), and a file
// templates/name.html. The file defines "content", with .D (the result of Load), .Query and the fields of Layout. If
// the page is Live, the file also defines "live", which receives only the result of Load. "live" is rendered at the
// interval of the page, by default once per second, for all browsers that show the page to the same identity:
//
//	{{define "content"}}
//	<h1>Queues</h1>
//	<div id="failure" sse-swap="failure" hx-swap="innerHTML"></div>
//	<div id="live" sse-swap="live" hx-swap="patch">{{template "live" .D}}</div>
//	{{end}}
//	{{define "live"}}…{{end}}
//
// The browser replaces only the differences (console.js). Rows that can be added or removed need a data-key. All
// parameters of a page, such as names of queues, are in its query: Load reads them with View.Get.
//
// For queues, wrap Load and Do in withQueues, which passes a client of the pair that owns the queue. View.Active
// connects to the active node, View.Own to this node, and View.Node to either node by UUID or name. Return errors
// unchanged: describe (errors.go) converts them to text. Use invalid("…") for invalid form input.
//
// An Action is a POST to the page's path, "/" and its name. A button that opens its dialog is
//
//	<a class="button" {{dialog "/queue/purge" "name" .Name}}>Purge</a>
//
// and the template that Action.Dialog names (in the page's file) contains the fields, but no form and no buttons:
//
//	{{define "purge"}}<p>All {{number .D.Messages}} messages are deleted.</p>
//	<div class="field"><label for="confirm">Type {{.D.Name}}</label><input id="confirm" name="confirm"
//	 data-confirm="{{.D.Name}}" required></div>{{end}}
//
// data-confirm disables the button until the text was typed. Do must check the text again. Submitted values are in
// .Form ({{.Form.Get "name"}}). An action without a dialog is a form of the page with method=post and
//
//	<input type="hidden" name="csrf" value="{{.CSRF}}">
//
// outside of "live". Within "live", use a button with hx-post, which sends the token in a header.
//
// Shared templates are in templates/parts.html, functions in format.go. A chart is
//
//	<div class="chart" data-chart="{{json .Chart}}"></div>
//
// with {"kind":"lines","unit":"number","x":[unix seconds],"series":[{"label":"…","values":[…]}]}, or
// {"kind":"bars","x":[0,1,…],"labels":["…"],…}. The units are number, count (integers), bytes and seconds. The content
// security policy forbids style attributes and inline scripts.
package console
