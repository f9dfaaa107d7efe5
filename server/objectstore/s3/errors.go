// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"slices"
	"time"

	"github.com/minio/minio-go/v7"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/backup"
)

const (
	firstPause   = 100 * time.Millisecond
	longestPause = 10 * time.Second
	attemptLimit = 3 * time.Minute
)

var errIncomplete = errors.New("truncated response")

// errorResponse returns the error response of the server. It returns false if the server has not responded.
func errorResponse(err error) (minio.ErrorResponse, bool) {
	r, ok := errors.AsType[minio.ErrorResponse](err)
	return r, ok && (r.StatusCode != 0 || r.Code != "")
}

func isA[E error](err error) bool {
	_, is := errors.AsType[E](err)
	return is
}

func isMissing(err error) bool {
	r, ok := errorResponse(err)
	return ok && (r.StatusCode == http.StatusNotFound || r.Code == minio.NoSuchKey || r.Code == minio.NoSuchUpload) &&
		r.Code != minio.NoSuchBucket
}

func isTaken(err error) bool {
	r, ok := errorResponse(err)
	return ok && (r.StatusCode == http.StatusPreconditionFailed || r.Code == minio.PreconditionFailed)
}

func isUnknown(err error) bool {
	r, ok := errorResponse(err)
	return ok && (r.StatusCode == http.StatusNotImplemented || r.Code == minio.NotImplemented)
}

// isTemporary reports whether a retry of the request may succeed.
func isTemporary(err error) bool {
	r, ok := errorResponse(err)
	if isA[*keysError](err) {
		return false
	}
	if !ok {
		return !isA[*tls.CertificateVerificationError](err) && !isA[x509.UnknownAuthorityError](err) &&
			!isA[tls.RecordHeaderError](err) && !errors.Is(err, http.ErrSchemeMismatch)
	}
	switch {
	case r.StatusCode == http.StatusNotImplemented:
		return false
	case r.StatusCode >= 500, r.StatusCode == http.StatusTooManyRequests, r.StatusCode == http.StatusRequestTimeout:
		return true
	}
	return slices.Contains([]string{
		"SlowDown", "SlowDownRead", "SlowDownWrite", "InternalError", "ServiceUnavailable", "RequestTimeout", "Throttling",
		"ThrottlingException", "RequestLimitExceeded", "RequestThrottled", "OperationAborted", "ConditionalRequestConflict",
		"BadDigest", "XAmzContentSHA256Mismatch", "XAmzContentChecksumMismatch", "ExpiredToken", "IncompleteBody",
	}, r.Code)
}

// try repeats a request until it succeeds, fails permanently, RetryFor has elapsed, or ctx ends.
func (p *Store) try(ctx context.Context, label string, do func(ctx context.Context) error) error {
	start, pause := time.Now(), firstPause
	for attempt := 1; ; attempt++ {
		err := p.attempt(ctx, do)
		if err == nil {
			if attempt > 1 {
				p.o.Logger.Debug("S3 request succeeded after retries", zap.String("request", label), zap.Int("attempts", attempt))
			}
			return nil
		}
		if cerr := ctx.Err(); cerr != nil {
			return fmt.Errorf("%s: %w", label, errors.Join(cerr, p.explain(err)))
		}
		rest := p.o.RetryFor - time.Since(start)
		if !isTemporary(err) || rest <= 0 {
			return fmt.Errorf("%s: %w", label, p.explain(err))
		}
		p.o.Logger.Debug("S3 request failed, retrying", zap.String("request", label), zap.Error(err))
		wait := min(pause/2+rand.N(pause/2+1), rest) //nolint:gosec // G404: jitter needs no secure source
		pause = min(2*pause, longestPause)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", label, errors.Join(ctx.Err(), p.explain(err)))
		case <-time.After(wait):
		}
	}
}

func (p *Store) attempt(ctx context.Context, do func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	return do(ctx)
}

// explain wraps the corresponding error of package backup or io/fs, and adds the cause and a suggested action if
// they are known.
func (p *Store) explain(err error) error {
	r, ok := errorResponse(err)
	switch {
	case isA[*keysError](err):
		return fmt.Errorf("%w: %w", backup.ErrRemote, err)
	case errors.Is(err, http.ErrSchemeMismatch):
		return fmt.Errorf("%w: backup.s3.endpoint is https, but %s uses http: %w", backup.ErrRemote, p.o.Endpoint, err)
	case !ok && !isTemporary(err):
		return fmt.Errorf("%w: certificate of %s is not trusted; set its CA with backup.s3.ca: %w", backup.ErrRemote,
			p.o.Endpoint, err)
	case !ok:
		return fmt.Errorf("%w: no response from %s: %w", backup.ErrRemote, p.o.Endpoint, err)
	case r.Code == minio.NoSuchBucket:
		return fmt.Errorf("%w: %s has no bucket %s; create it first: %w", backup.ErrRemote, p.o.Endpoint, p.at.Bucket, err)
	case isMissing(err):
		return fmt.Errorf("%w: %w", fs.ErrNotExist, err)
	case isTaken(err):
		return fmt.Errorf("%w: %w", fs.ErrExist, err)
	case slices.Contains([]string{"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"}, r.Code):
		return fmt.Errorf("%w: %s rejected the access key or secret key; see backup.s3.access-key-file and "+
			"backup.s3.secret-key-file, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: %w", backup.ErrRemote, p.o.Endpoint, err)
	case r.Code == "RequestTimeTooSkewed":
		return fmt.Errorf("%w: clocks of this machine and of %s differ: %w", backup.ErrRemote, p.o.Endpoint, err)
	case r.StatusCode == http.StatusForbidden:
		return fmt.Errorf("%w: access key has insufficient permissions in %s; required: list, get, put and delete objects "+
			"below the prefix, list and abort uploads: %w", backup.ErrRemote, p.at, err)
	case slices.Contains([]string{"QuotaExceeded", "InsufficientStorage", "XMinioStorageFull"}, r.Code),
		r.StatusCode == http.StatusInsufficientStorage:
		return fmt.Errorf("%w: %w: %s: %w", backup.ErrRemote, backup.ErrNoSpace, p.at, err)
	case r.StatusCode >= http.StatusInternalServerError:
		return fmt.Errorf("%w: %s after retries for %v: status %d %s: %w", backup.ErrRemote, p.o.Endpoint,
			p.o.RetryFor, r.StatusCode, r.Code, err)
	}
	return fmt.Errorf("%w: %s: status %d %s: %w", backup.ErrRemote, p.o.Endpoint, r.StatusCode, r.Code, err)
}
