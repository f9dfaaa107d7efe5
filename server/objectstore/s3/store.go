// SPDX-License-Identifier: Apache-2.0

// Package s3 implements backup.Objects with a bucket of an S3 server.
//
// Uploads are streamed in parts from a fixed number of buffers. An object becomes visible when its upload is
// completed, and only if its name is not in use (with If-None-Match, if the server supports it). Requests are retried
// with exponential backoff while the server is unreachable or busy.
package s3

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/minio/minio-go/v7"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store/backup"
)

// Limits and defaults of Options. S3 requires that each part except the last one has at least MinPartBytes.
const (
	MinPartBytes     = 5 << 20
	DefaultPartBytes = 8 << 20
	DefaultParallel  = 4
	DefaultRetryFor  = time.Minute

	defaultRegion = "us-east-1"
	amazon        = "https://s3.amazonaws.com"
)

// ErrOptions is returned for invalid settings of the S3 server.
var ErrOptions = errors.New("invalid S3 settings")

// Options configures access to the server.
type Options struct {
	Endpoint string // http:// or https:// URL; empty for AWS
	Region   string // empty for AWS_REGION or AWS_DEFAULT_REGION, or us-east-1
	// PathStyle selects URLs of the form http://host/bucket/name. If it is false, the client selects the form by the
	// endpoint.
	PathStyle bool
	CA        string // file with the CAs for the server's certificate; if empty, the CAs of the system
	// AccessKeyFile, SecretKeyFile and SessionTokenFile are the files with the keys. If they are empty, the keys are
	// those in AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN. If these are unset, the AWS shared
	// credentials file is used and then, with the AWS endpoint, the IAM role of the host.
	AccessKeyFile, SecretKeyFile, SessionTokenFile string
	// PartBytes is the size of a part, at least MinPartBytes; 0 means DefaultPartBytes. For an object that would have
	// too many parts, a larger size is used. If MemoryBytes requires it, a smaller size is used.
	PartBytes   int64
	Parallel    int   // maximum number of concurrent part uploads; 0 means DefaultParallel
	MemoryBytes int64 // limit for the buffers of one upload, at least two parts; 0 means no limit
	// RetryFor limits the time for which a request is retried if the server does not respond or reports a temporary
	// error; 0 means DefaultRetryFor.
	RetryFor time.Duration
	Logger   *zap.Logger // may be nil
}

// Store is a bucket, or a prefix in a bucket.
type Store struct {
	o             Options
	at            backup.Location
	core          *minio.Core
	client        *http.Transport
	unconditional atomic.Bool // the server does not support If-None-Match
}

var _ backup.Objects = (*Store)(nil)

// Open creates a client for a bucket. It sends no request. It returns ErrOptions for invalid options.
func Open(at backup.Location, o Options) (*Store, error) {
	if !at.IsS3() {
		return nil, fmt.Errorf("%w: %s is not a bucket", ErrOptions, at)
	}
	o = o.withDefaults()
	endpoint, secure, err := backup.ParseEndpoint(o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("%w: backup.s3.endpoint: %w", ErrOptions, err)
	}
	keys, err := o.credentials()
	if err != nil {
		return nil, err
	}
	transport, err := o.transport()
	if err != nil {
		return nil, err
	}
	lookup := minio.BucketLookupAuto
	if o.PathStyle {
		lookup = minio.BucketLookupPath
	}
	core, err := minio.NewCore(endpoint, &minio.Options{
		Creds: keys, Secure: secure, Transport: transport, Region: o.Region, BucketLookup: lookup, MaxRetries: 1,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	return &Store{o: o, at: at, core: core, client: transport}, nil
}

func (o Options) withDefaults() Options {
	o.Endpoint = cmp.Or(o.Endpoint, amazon)
	o.Region = cmp.Or(o.Region, os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), defaultRegion)
	o.PartBytes = cmp.Or(o.PartBytes, DefaultPartBytes)
	o.Parallel = cmp.Or(o.Parallel, DefaultParallel)
	o.RetryFor = cmp.Or(o.RetryFor, DefaultRetryFor)
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

const (
	dialLimit      = 5 * time.Second
	handshakeLimit = 10 * time.Second
	responseLimit  = time.Minute // maximum wait for the headers of a response
	idleLimit      = time.Minute
	copyBytes      = 256 << 10
)

func (o Options) transport() (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		pem, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("%w: read CA certificates: %w", ErrOptions, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: no PEM certificate in %s", ErrOptions, o.CA)
		}
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: dialLimit}).DialContext,
		TLSClientConfig: config, TLSHandshakeTimeout: handshakeLimit, ResponseHeaderTimeout: responseLimit,
		IdleConnTimeout: idleLimit, MaxIdleConnsPerHost: o.Parallel + readAhead, DisableCompression: true,
		WriteBufferSize: copyBytes, ReadBufferSize: copyBytes,
	}, nil
}

// Close closes idle connections.
func (p *Store) Close() error {
	p.client.CloseIdleConnections()
	return nil
}

func (p *Store) key(name string) string { return p.at.In(name).Prefix }

// Path returns the URL of an object or a folder.
func (p *Store) Path(name string) string {
	if name == "" {
		return p.at.String()
	}
	return p.at.In(name).String()
}

func (p *Store) folder(name string) string {
	prefix := p.at.Prefix
	if name != "" {
		prefix = p.key(name)
	}
	if prefix != "" {
		prefix += "/"
	}
	return prefix
}

// List returns the entries of a folder. It returns fs.ErrNotExist for an empty or missing folder.
func (p *Store) List(ctx context.Context, folder string) ([]backup.Entry, error) {
	prefix := p.folder(folder)
	var entries []backup.Entry
	err := p.try(ctx, "list "+p.Path(folder), func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the listing
		entries = nil
		for o := range p.core.Client.ListObjects(ctx, p.at.Bucket, minio.ListObjectsOptions{Prefix: prefix}) {
			if o.Err != nil {
				return o.Err
			}
			name, isFolder := strings.CutSuffix(strings.TrimPrefix(o.Key, prefix), "/")
			if name != "" {
				entries = append(entries, backup.Entry{
					Name: name, Folder: isFolder, Bytes: o.Size, Changed: o.LastModified,
				})
			}
		}
		return nil
	})
	if err == nil && len(entries) == 0 {
		err = fmt.Errorf("list %s: %w", p.Path(folder), fs.ErrNotExist)
	}
	return entries, err
}

func (p *Store) stat(ctx context.Context, name string) (info minio.ObjectInfo, err error) {
	err = p.try(ctx, "stat "+p.Path(name), func(ctx context.Context) (err error) {
		info, err = p.core.Client.StatObject(ctx, p.at.Bucket, p.key(name), minio.StatObjectOptions{})
		return err //nolint:wrapcheck // try names the request
	})
	return info, err
}

// Delete deletes an object. A missing object is not an error. In a bucket with versioning or object lock, the
// object is only hidden until the lifecycle rules of the bucket remove it.
func (p *Store) Delete(ctx context.Context, name string) error {
	err := p.try(ctx, "remove "+p.Path(name), func(ctx context.Context) error {
		return p.core.Client.RemoveObject(ctx, p.at.Bucket, p.key(name), minio.RemoveObjectOptions{})
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Move copies an object of at most 5 GiB on the server and deletes the original. It replaces an existing object with
// the new name.
func (p *Store) Move(ctx context.Context, from, to string) error {
	err := p.try(ctx, "move "+p.Path(from), func(ctx context.Context) error {
		_, err := p.core.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: p.at.Bucket, Object: p.key(to)},
			minio.CopySrcOptions{Bucket: p.at.Bucket, Object: p.key(from)})
		return err //nolint:wrapcheck // try names the request
	})
	if err != nil {
		return err
	}
	return p.Delete(ctx, from)
}

// Sweep aborts incomplete uploads in a folder and its subfolders that were started before the given time. If the time
// is zero, it aborts all of them. It does nothing if the server cannot list incomplete uploads.
func (p *Store) Sweep(ctx context.Context, folder string, before time.Time) error {
	prefix := p.folder(folder)
	return p.try(ctx, "list unfinished uploads in "+p.Path(folder), func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the listing
		for u := range p.core.Client.ListIncompleteUploads(ctx, p.at.Bucket, prefix, true) {
			switch {
			case u.Err != nil && isUnknown(u.Err):
				return nil // the server does not support this list
			case u.Err != nil:
				return u.Err
			case u.UploadID == "" || !before.IsZero() && !u.Initiated.Before(before):
				continue
			}
			err := p.core.AbortMultipartUpload(ctx, p.at.Bucket, u.Key, u.UploadID)
			if err != nil && !isMissing(err) {
				return err //nolint:wrapcheck // try names the request
			}
			p.o.Logger.Info("incomplete upload aborted", zap.String("object", u.Key), zap.Time("begun", u.Initiated))
		}
		return nil
	})
}

// Lock returns a lock without effect. exclusive is false.
func (p *Store) Lock(context.Context) (io.Closer, bool, error) { return io.NopCloser(nil), false, nil }

// Available returns math.MaxUint64.
func (p *Store) Available(context.Context) (uint64, error) { return math.MaxUint64, nil }
