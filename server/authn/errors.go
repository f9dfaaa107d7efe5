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
	"github.com/lockstep-mq/lockstep/server/access"
)

// Check is what was found wrong. It is a label of the metric of failures.
type Check string

// The checks.
const (
	CheckHeader      Check = "header"      // the metadata cannot be read
	CheckCertificate Check = "certificate" // the certificate names no holder
	CheckToken       Check = "token"       // the pair knows no such token
	CheckForm        Check = "form"        // a JWT that cannot be read, or that no setting is there for
	CheckAlgorithm   Check = "algorithm"   // how a JWT is signed
	CheckKey         Check = "key"         // the issuer has no such key
	CheckSignature   Check = "signature"
	CheckIssuer      Check = "issuer"
	CheckAudience    Check = "audience"
	CheckTime        Check = "time" // expired, revoked, or not yet valid
	CheckClaims      Check = "claims"
	CheckLimit       Check = "limit"       // too many failures of the address: not checked
	CheckUnavailable Check = "unavailable" // the keys of the issuer cannot be had: not checked
)

// Checks lists all of them.
func Checks() []Check {
	return []Check{
		CheckHeader, CheckCertificate, CheckToken, CheckForm, CheckAlgorithm, CheckKey, CheckSignature, CheckIssuer,
		CheckAudience, CheckTime, CheckClaims, CheckLimit, CheckUnavailable,
	}
}

// Error is why a caller was not let in. It is an access.ErrUnauthenticated, and knows its gRPC status. Its text never
// has a part of what was shown that is secret.
type Error struct {
	// Check that failed.
	Check Check
	// RetryAfter is how long the caller should wait before it tries again; 0: nothing is said.
	RetryAfter time.Duration

	text    string
	code    codes.Code
	expired bool // another token of the same principal will do
	running bool // it ends a stream, which knows itself how far it has come
}

func (e *Error) Error() string { return e.text }

// Is makes errors.Is(err, access.ErrUnauthenticated) true.
func (e *Error) Is(target error) bool { return target == access.ErrUnauthenticated }

// GRPCStatus is the status that the call ends with. Of a publish stream it says that nothing of it was carried out:
// the caller was not let in.
func (e *Error) GRPCStatus() *status.Status {
	r := pb.ErrorReason_ERROR_REASON_UNAUTHENTICATED
	switch {
	case e.code != codes.Unauthenticated:
		r = pb.ErrorReason_ERROR_REASON_UNCHECKED
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
	if with, err := st.WithDetails(details...); err == nil { // it cannot fail: these are known messages
		st = with
	}
	return st
}

// wrong makes the error of a check that failed.
func wrong(c Check, text string) *Error {
	return &Error{Check: c, text: "who calls was not believed: " + text, code: codes.Unauthenticated}
}

// over makes the error of a token that was good once.
func over(text string) *Error {
	e := wrong(CheckTime, text)
	e.expired = true
	return e
}

// unchecked makes the error of a token that could not be checked.
func unchecked(c Check, code codes.Code, wait time.Duration, text string) *Error {
	return &Error{Check: c, text: text, code: code, RetryAfter: wait}
}

// ends makes the error that ends a running stream.
func ends(text string) *Error {
	e := over(text)
	e.running = true
	return e
}
