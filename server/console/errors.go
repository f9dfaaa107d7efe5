// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// failure is what a person is told of something that could not be done.
type failure struct {
	Code   int    // of HTTP
	Title  string // what happened
	Text   string // what exactly
	Action string // what to do
	Needs  string // the right that is missing; empty: none
	Reason string // name of the error, for the documents; may be empty
	Link   string // where it can be done; empty: nowhere else
}

// invalid is returned by actions for what was filled in wrongly.
type invalid string

func (e invalid) Error() string { return string(e) }

// advice is what to do about a gRPC status.
func advice(c codes.Code) (code int, title, action string) {
	switch c {
	case codes.Unauthenticated:
		return http.StatusUnauthorized, "You are not signed in any more", "Sign in again."
	case codes.PermissionDenied:
		return http.StatusForbidden, "You may not do this",
			"Ask an operator for the right (lockstep access grant), or sign in as somebody who has it."
	case codes.InvalidArgument, codes.OutOfRange:
		return http.StatusBadRequest, "Something in the request cannot be used", "Correct it and try again."
	case codes.NotFound:
		return http.StatusNotFound, "It does not exist", "It may have been deleted meanwhile; go back to the list."
	case codes.AlreadyExists:
		return http.StatusConflict, "It exists already", "Choose another name, or change the one that exists."
	case codes.FailedPrecondition:
		return http.StatusConflict, "The present state does not allow it", "The text says what has to be done first."
	case codes.Aborted:
		return http.StatusConflict, "It was interrupted", "Nothing is half done; try again."
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests, "A limit is reached", "The text names the limit; wait, or have it raised."
	case codes.Unavailable:
		return http.StatusServiceUnavailable, "The node cannot answer now",
			"A failover may be under way: look at the page Pair, and try again in a moment."
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout, "It took too long",
			"Whether it was done is not known: look before you try it again."
	case codes.DataLoss:
		return http.StatusInternalServerError, "Something is damaged",
			"Look at the page Alarms; the runbook says how damage is repaired."
	case codes.Unimplemented:
		return http.StatusNotImplemented, "The node does not know this",
			"It runs an older version: upgrade it (lockstep restart --rolling)."
	default:
		return http.StatusInternalServerError, "It could not be done", "The log of the node may say more."
	}
}

// describe makes of an error what a person is told.
func describe(err error) failure {
	var elsewhere *otherConsole
	if errors.As(err, &elsewhere) {
		return elsewhere.describe()
	}
	var wrong invalid
	if errors.As(err, &wrong) {
		return failure{
			Code: http.StatusBadRequest, Title: "Something is filled in wrongly", Text: string(wrong),
			Action: "Correct it and try again. Nothing was done.",
		}
	}
	if errors.Is(err, errNoActive) {
		return failure{
			Code: http.StatusServiceUnavailable, Title: "No node is active now", Text: "There is no node that could do it.",
			Action: "The page Pair shows what the nodes wait for; try again when one of them is active.",
		}
	}
	st := status.Convert(err)
	if st.Code() == codes.Unknown && errors.Is(err, context.DeadlineExceeded) {
		st = status.New(codes.DeadlineExceeded, st.Message())
	}
	f := failure{Text: plain(st.Message())}
	f.Code, f.Title, f.Action = advice(st.Code())
	for _, d := range st.Details() {
		if info, is := d.(*errdetails.ErrorInfo); is {
			f.Reason = strings.TrimPrefix(info.GetReason(), "ERROR_REASON_")
		}
	}
	if f.Reason == "NOT_ACTIVE" {
		f.Code, f.Title, f.Action = advice(codes.Unavailable)
	}
	return f
}

var (
	// inner begins the text of a status that is within another error.
	inner = regexp.MustCompile(`rpc error: code = \w+ desc = `)
	// ofGRPC begins text that gRPC has written itself, up to the end.
	ofGRPC = regexp.MustCompile(`(?s)(connection error: desc = |transport: |grpc: |` +
		`error reading (from server|server preface)|name resolver error|` +
		`last(est)? (balancer|connection|resolver) error|received context error|` +
		`stream terminated by RST_STREAM|the (client )?connection is (closing|draining)|closing transport|` +
		`unknown (method|service) |malformed (header|method)|unexpected HTTP status|` +
		`context (deadline exceeded|canceled)).*`)
)

// plain is a text of an error with a sentence in place of what gRPC has written itself.
func plain(text string) string {
	text = strings.TrimSpace(inner.ReplaceAllString(text, ""))
	at := ofGRPC.FindStringIndex(text)
	if at == nil {
		return text
	}
	before, sentence := strings.TrimRight(text[:at[0]], ": \""), sentenceOf(text[at[0]:])
	if before == "" {
		return strings.ToUpper(sentence[:1]) + sentence[1:] + "."
	}
	return before + ": " + sentence
}

// sentenceOf says in plain words what gRPC has written.
func sentenceOf(text string) string {
	const handshake = "authentication handshake failed: "
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case has(handshake):
		_, why, _ := strings.Cut(text, handshake)
		return "the TLS handshake with the node failed: " + strings.Trim(why, `" `)
	case has("connection refused"):
		return "the node refused the connection"
	case has("no such host"), has("name resolver error"):
		return "the name of the node cannot be resolved"
	case has("deadline exceeded"), has("i/o timeout"):
		return "the node did not answer in time"
	case has("context canceled"):
		return "the request was cancelled"
	case has("larger than max"):
		return "a message is too large for one request"
	case strings.HasPrefix(text, "unknown "):
		return "the node does not know this request"
	}
	return "the connection to the node failed"
}

// describe says where it can be done.
func (e *otherConsole) describe() failure {
	return failure{
		Code: http.StatusConflict, Title: "This has to be done at the console of node " + e.node.GetName(),
		Text:   plain(e.err.Error()) + ".",
		Action: "Open the console of node " + e.node.GetName() + " and sign in there, or use the command line.",
		Link:   e.console,
	}
}
