// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// Check identifies the check that failed. It is the value of a label of the metric of authentication failures.
type Check string

// Checks of credentials.
const (
	CheckHeader      Check = "header"      // the metadata cannot be parsed
	CheckCertificate Check = "certificate" // the certificate contains no usable name
	CheckToken       Check = "token"       // the pair has no such token
	CheckForm        Check = "form"        // malformed JWT, or JWTs are not configured
	CheckAlgorithm   Check = "algorithm"   // the signature algorithm of the JWT is not accepted
	CheckKey         Check = "key"         // the issuer has no key with this ID
	CheckSignature   Check = "signature"
	CheckIssuer      Check = "issuer"
	CheckAudience    Check = "audience"
	CheckTime        Check = "time" // expired, revoked, or not yet valid
	CheckClaims      Check = "claims"
	CheckLimit       Check = "limit"       // not checked: too many failures from the address
	CheckUnavailable Check = "unavailable" // not checked: the keys of the issuer are unavailable
)

// Checks returns all checks.
func Checks() []Check {
	return []Check{
		CheckHeader, CheckCertificate, CheckToken, CheckForm, CheckAlgorithm, CheckKey, CheckSignature, CheckIssuer,
		CheckAudience, CheckTime, CheckClaims, CheckLimit, CheckUnavailable,
	}
}

// Error is an authentication failure. It matches access.ErrUnauthenticated. Its text never contains secret parts
// of credentials.
type Error struct {
	Check      Check
	RetryAfter time.Duration // 0 if unspecified

	text    string
	code    codes.Code
	expired bool // the token has expired: another token of the same principal can succeed
	running bool // the error ends a running stream, which reports its progress
}

func (e *Error) Error() string { return e.text }

// Is reports whether target is access.ErrUnauthenticated.
func (e *Error) Is(target error) bool { return target == access.ErrUnauthenticated }

// GRPCStatus returns the status of the call. The status of a publish stream states that no request was executed,
// unless the stream was already running.
func (e *Error) GRPCStatus() *status.Status {
	r := pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED
	switch {
	case e.code != codes.Unauthenticated:
		r = pb.ErrorReason_ERROR_REASON_AUTH_UNAVAILABLE
	case e.expired:
		r = pb.ErrorReason_ERROR_REASON_TOKEN_EXPIRED
	}
	details := []protoadapt.MessageV1{&errdetails.ErrorInfo{Reason: reason.Name(r), Domain: reason.Domain}}
	if !e.running {
		details = append(details, &pb.Submitted{})
	}
	if e.RetryAfter > 0 {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)})
	}
	st := status.New(e.code, e.text)
	if with, err := st.WithDetails(details...); err == nil { // an error is unreachable: the messages are known
		st = with
	}
	return st
}

func newError(c Check, text string) *Error {
	return &Error{Check: c, text: "authentication failed: " + text, code: codes.Unauthenticated}
}

func errExpired(text string) *Error {
	e := newError(CheckTime, text)
	e.expired = true
	return e
}

// unchecked returns the error for a token that could not be checked.
func unchecked(c Check, code codes.Code, wait time.Duration, text string) *Error {
	return &Error{Check: c, text: text, code: code, RetryAfter: wait}
}

func errStreamEnds(text string) *Error {
	e := errExpired(text)
	e.running = true
	return e
}
