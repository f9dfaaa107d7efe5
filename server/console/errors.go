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

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
)

type failure struct {
	Code   int // HTTP status
	Title  string
	Text   string
	Action string // advice for the user
	Right  string // missing right; may be empty
	Reason string // error reason as in the documentation; may be empty
	Link   string // URL at which the action is possible; may be empty
}

// invalid is an error with a text for the user, for example about invalid form input.
type invalid string

func (e invalid) Error() string { return string(e) }

// advice returns the HTTP status, the title and the suggested action for an error with the given gRPC code.
func advice(c codes.Code) (code int, title, action string) {
	switch c {
	case codes.Unauthenticated:
		return http.StatusUnauthorized, "Session expired", "Sign in again."
	case codes.PermissionDenied:
		return http.StatusForbidden, "Permission denied",
			"Ask an operator for the right (lockstep access grant), or sign in with another account."
	case codes.InvalidArgument, codes.OutOfRange:
		return http.StatusBadRequest, "Invalid request", "Correct it and retry."
	case codes.NotFound:
		return http.StatusNotFound, "Not found", "It may have been deleted; return to the list."
	case codes.AlreadyExists:
		return http.StatusConflict, "Already exists", "Choose another name, or change the existing one."
	case codes.FailedPrecondition:
		return http.StatusConflict, "Not possible in the current state", "The error states what to do first."
	case codes.Aborted:
		return http.StatusConflict, "Interrupted", "Nothing was changed. Retry the operation."
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests, "Limit reached", "The error states the limit: wait, or raise it."
	case codes.Unavailable:
		return http.StatusServiceUnavailable, "Node unavailable",
			"A failover may be in progress: check the Pair page. An action may have been executed: check the result " +
				"before you retry."
	case codes.Canceled:
		return http.StatusServiceUnavailable, "Outcome unknown",
			"The operation may have been executed: check the result before you retry."
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout, "Timeout",
			"The outcome is unknown: check the result before you retry."
	case codes.DataLoss:
		return http.StatusInternalServerError, "Data corrupt",
			"Follow the runbook links on the Alarms page to repair it."
	case codes.Unimplemented:
		return http.StatusNotImplemented, "Not supported by the node",
			"The node runs an older release: upgrade it (lockstep restart)."
	default:
		return http.StatusInternalServerError, "Operation failed", "Check the log of the node."
	}
}

func describe(err error) failure {
	var elsewhere *otherConsole
	if errors.As(err, &elsewhere) {
		return elsewhere.describe()
	}
	var wrong invalid
	if errors.As(err, &wrong) {
		return failure{
			Code: http.StatusBadRequest, Title: "Invalid input", Text: string(wrong),
			Action: "Correct the input and retry. Nothing was done.",
		}
	}
	if errors.Is(err, errNoActive) {
		return failure{
			Code: http.StatusServiceUnavailable, Title: "No active node", Text: "The operation requires an active node.",
			Action: "See the Pair page for the reason; retry when a node is active.",
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
	f.advise()
	return f
}

// advise replaces the advice of the gRPC code if the reason of the error permits a more precise one.
func (f *failure) advise() {
	r := reason.Parse(f.Reason)
	switch r { //nolint:exhaustive // the advice of the code applies to the other reasons
	case pb.ErrorReason_ERROR_REASON_OUTCOME_UNKNOWN:
		f.Code, f.Title, f.Action = advice(codes.Canceled)
	case pb.ErrorReason_ERROR_REASON_NOT_ACTIVE, pb.ErrorReason_ERROR_REASON_BLOCKED,
		pb.ErrorReason_ERROR_REASON_SITE_LAG, pb.ErrorReason_ERROR_REASON_PAUSED: // nothing was executed
		f.Code, f.Title, _ = advice(codes.Unavailable)
		f.Action = "A failover may be in progress: check the Pair page, and retry."
	}
	if reason.Kind(r) == pb.ErrorKind_ERROR_KIND_BUSY {
		f.Title, f.Action = "Operation in progress", "Wait until it has ended, then retry."
	}
}

var (
	// inner matches the prefix of a status that is nested in another error.
	inner = regexp.MustCompile(`rpc error: code = \w+ desc = `)
	// ofGRPC matches text that gRPC itself has generated, up to the end of the string.
	ofGRPC = regexp.MustCompile(`(?s)(connection error: desc = |transport: |grpc: |` +
		`error reading (from server|server preface)|name resolver error|` +
		`last(est)? (balancer|connection|resolver) error|received context error|` +
		`stream terminated by RST_STREAM|the (client )?connection is (closing|draining)|closing transport|` +
		`unknown (method|service) |malformed (header|method)|unexpected HTTP status|` +
		`context (deadline exceeded|canceled)).*`)
)

// plain replaces text that gRPC itself has generated with a sentence.
func plain(text string) string {
	text = strings.TrimSpace(inner.ReplaceAllString(text, ""))
	at := ofGRPC.FindStringIndex(text)
	if at == nil {
		return text
	}
	before, sentence := strings.TrimRight(text[:at[0]], ": \""), sentenceText(text[at[0]:])
	if before == "" {
		return strings.ToUpper(sentence[:1]) + sentence[1:] + "."
	}
	return before + ": " + sentence
}

func sentenceText(text string) string {
	const handshake = "authentication handshake failed: "
	has := func(part string) bool { return strings.Contains(text, part) }
	switch {
	case has(handshake):
		_, cause, _ := strings.Cut(text, handshake)
		return "the TLS handshake with the node failed: " + strings.Trim(cause, `" `)
	case has("connection refused"):
		return "connection refused by the node"
	case has("no such host"), has("name resolver error"):
		return "cannot resolve the host name of the node"
	case has("deadline exceeded"), has("i/o timeout"):
		return "timeout while waiting for the node"
	case has("context canceled"):
		return "the request was canceled"
	case has("larger than max"):
		return "message too large for one request"
	case strings.HasPrefix(text, "unknown "):
		return "request not supported by the node"
	}
	return "the connection to the node failed"
}

// describe returns a description of the failure, with the URL of the console on which the action is possible.
func (e *otherConsole) describe() failure {
	return failure{
		Code: http.StatusConflict, Title: "Use the console of node " + e.node.GetName(),
		Text:   plain(e.err.Error()) + ".",
		Action: "Open the console of node " + e.node.GetName() + " and sign in there, or use the command line.",
		Link:   e.console,
	}
}
