// SPDX-License-Identifier: Apache-2.0

// Package s3 keeps save-sets and log archives in a bucket of an S3 server: the second implementation of backup.Objects,
// beside the directory.
//
// What is put is streamed in parts, several at a time, from a fixed number of buffers; each part carries a checksum
// that the server verifies. An object gets its name when the upload is completed, and only if no object has it
// (If-None-Match, where the server knows that). What is read is fetched in blocks, the next ones ahead of time. Each
// request is repeated, with growing pauses, while the server is out of reach or says that it is busy.
package s3

import (
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

// Limits and defaults of Options.
const (
	// MinPartBytes is what S3 demands of each part but the last one.
	MinPartBytes = 5 << 20
	// DefaultPartBytes, DefaultParallel and DefaultRetryFor are what is used for 0.
	DefaultPartBytes = 8 << 20
	DefaultParallel  = 4
	DefaultRetryFor  = time.Minute

	defaultRegion = "us-east-1"
	amazon        = "https://s3.amazonaws.com"
)

// ErrOptions is returned for settings with which no server can be asked.
var ErrOptions = errors.New("the settings of the S3 server cannot be used")

// Options say which server is asked, and how.
type Options struct {
	// Endpoint is the URL of the server, http:// or https://; empty for Amazon's.
	Endpoint string
	// Region of the bucket; empty: AWS_REGION or AWS_DEFAULT_REGION, or us-east-1.
	Region string
	// PathStyle asks for http://host/bucket/name. False asks for http://bucket.host/name if that is Amazon's, and for
	// the other form otherwise.
	PathStyle bool
	// CA is a file with the authorities that the server's certificate is checked against; empty: the system's.
	CA string
	// AccessKeyFile, SecretKeyFile and SessionTokenFile hold the keys. Empty: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
	// and AWS_SESSION_TOKEN; or else the file of credentials that the tools of Amazon use; or else, with Amazon's
	// endpoint, the role of the machine.
	AccessKeyFile, SecretKeyFile, SessionTokenFile string
	// PartBytes is the size of a part, at least MinPartBytes; larger ones are used for an object that has too many of
	// them otherwise.
	PartBytes int64
	// Parallel is how many parts are under way at once, at most.
	Parallel int
	// MemoryBytes bounds the buffers of one object that is put; two parts are always there. 0: no bound.
	MemoryBytes int64
	// RetryFor is how long a request is repeated that the server does not answer, or does not take now.
	RetryFor time.Duration
	// Logger gets what an operator should know; nil means none.
	Logger *zap.Logger
}

// Place is a bucket, or what is below a prefix in it.
type Place struct {
	o      Options
	at     backup.Location
	core   *minio.Core
	client *http.Transport
	// unconditional: the server does not know If-None-Match.
	unconditional atomic.Bool
}

var _ backup.Objects = (*Place)(nil)

// Open makes a client of a bucket. Nothing is asked yet. ErrOptions.
func Open(at backup.Location, o Options) (*Place, error) {
	if !at.IsS3() {
		return nil, fmt.Errorf("%w: %s is no bucket", ErrOptions, at)
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
	return &Place{o: o, at: at, core: core, client: transport}, nil
}

func (o Options) withDefaults() Options {
	if o.Endpoint == "" {
		o.Endpoint = amazon
	}
	for _, name := range []string{"AWS_REGION", "AWS_DEFAULT_REGION"} {
		if o.Region == "" {
			o.Region = os.Getenv(name)
		}
	}
	if o.Region == "" {
		o.Region = defaultRegion
	}
	if o.PartBytes == 0 {
		o.PartBytes = DefaultPartBytes
	}
	if o.Parallel == 0 {
		o.Parallel = DefaultParallel
	}
	if o.RetryFor == 0 {
		o.RetryFor = DefaultRetryFor
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	return o
}

// Times that one request may take.
const (
	dialLimit      = 5 * time.Second
	handshakeLimit = 10 * time.Second
	answerLimit    = time.Minute
	idleLimit      = time.Minute
	copyBytes      = 256 << 10
)

func (o Options) transport() (*http.Transport, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if o.CA != "" {
		pem, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("%w: read the authorities: %w", ErrOptions, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%w: %s holds no certificate in PEM", ErrOptions, o.CA)
		}
	}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: dialLimit}).DialContext,
		TLSClientConfig: config, TLSHandshakeTimeout: handshakeLimit, ResponseHeaderTimeout: answerLimit,
		IdleConnTimeout: idleLimit, MaxIdleConnsPerHost: o.Parallel + readAhead, DisableCompression: true,
		WriteBufferSize: copyBytes, ReadBufferSize: copyBytes,
	}, nil
}

// Close closes connections that are not in use.
func (p *Place) Close() error {
	p.client.CloseIdleConnections()
	return nil
}

// key is the name of an object in the bucket.
func (p *Place) key(name string) string { return p.at.In(name).Prefix }

// Path is the URL of an object or a folder.
func (p *Place) Path(name string) string {
	if name == "" {
		return p.at.String()
	}
	return p.at.In(name).String()
}

// folder is the prefix of what is in a folder.
func (p *Place) folder(name string) string {
	prefix := p.at.Prefix
	if name != "" {
		prefix = p.key(name)
	}
	if prefix != "" {
		prefix += "/"
	}
	return prefix
}

// List lists a folder.
func (p *Place) List(ctx context.Context, folder string) ([]backup.Entry, error) {
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

// stat describes an object.
func (p *Place) stat(ctx context.Context, name string) (info minio.ObjectInfo, err error) {
	err = p.try(ctx, "look at "+p.Path(name), func(ctx context.Context) (err error) {
		info, err = p.core.Client.StatObject(ctx, p.at.Bucket, p.key(name), minio.StatObjectOptions{})
		return err //nolint:wrapcheck // try says what was tried
	})
	return info, err
}

// Delete removes an object. In a bucket with versions or locks that hides it, and the bucket's rules remove it.
func (p *Place) Delete(ctx context.Context, name string) error {
	err := p.try(ctx, "remove "+p.Path(name), func(ctx context.Context) error {
		return p.core.Client.RemoveObject(ctx, p.at.Bucket, p.key(name), minio.RemoveObjectOptions{})
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// Move has the server copy an object, of at most 5 GiB, and removes the former one.
func (p *Place) Move(ctx context.Context, from, to string) error {
	err := p.try(ctx, "move "+p.Path(from), func(ctx context.Context) error {
		_, err := p.core.Client.CopyObject(ctx, minio.CopyDestOptions{Bucket: p.at.Bucket, Object: p.key(to)},
			minio.CopySrcOptions{Bucket: p.at.Bucket, Object: p.key(from)})
		return err //nolint:wrapcheck // try says what was tried
	})
	if err != nil {
		return err
	}
	return p.Delete(ctx, from)
}

// Sweep aborts uploads that were not completed, so that their parts cost nothing.
func (p *Place) Sweep(ctx context.Context, folder string, before time.Time) error {
	prefix := p.folder(folder)
	return p.try(ctx, "look for unfinished uploads in "+p.Path(folder), func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel() // ends the listing
		for u := range p.core.Client.ListIncompleteUploads(ctx, p.at.Bucket, prefix, true) {
			switch {
			case u.Err != nil && isUnknown(u.Err):
				return nil // a server without such a list
			case u.Err != nil:
				return u.Err
			case u.UploadID == "" || !before.IsZero() && !u.Initiated.Before(before):
				continue
			}
			err := p.core.AbortMultipartUpload(ctx, p.at.Bucket, u.Key, u.UploadID)
			if err != nil && !isMissing(err) {
				return err //nolint:wrapcheck // try says what was tried
			}
			p.o.Logger.Info("an upload that was not completed is aborted", zap.String("object", u.Key),
				zap.Time("begun", u.Initiated))
		}
		return nil
	})
}

// noLock is what Lock gives: there is none in a bucket.
type noLock struct{}

func (noLock) Close() error { return nil }

// Lock takes nothing: others may use the bucket at the same time.
func (p *Place) Lock(context.Context) (io.Closer, bool, error) { return noLock{}, false, nil }

// Available is without a bound.
func (p *Place) Available(context.Context) (uint64, error) { return math.MaxUint64, nil }
