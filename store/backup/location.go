// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
)

// ErrLocation is returned for an invalid location of backups or a log archive.
var ErrLocation = errors.New("must be an absolute path, file:///PATH or s3://BUCKET/PREFIX")

// maxPrefixBytes limits the prefix in a bucket.
const maxPrefixBytes = 512

// Location is the location of backups or a log archive. Either Dir or Bucket is set.
type Location struct {
	Dir string
	// Bucket is the name of the bucket. Prefix is the prefix of the keys in it; it may be empty, and has no leading
	// or trailing slash.
	Bucket, Prefix string
}

// IsS3 reports whether the location is a bucket.
func (l Location) IsS3() bool { return l.Bucket != "" }

// In returns the location of a folder in l.
func (l Location) In(folder string) Location {
	if !l.IsS3() {
		return Location{Dir: filepath.Join(l.Dir, folder)}
	}
	return Location{Bucket: l.Bucket, Prefix: strings.TrimPrefix(l.Prefix+"/"+folder, "/")}
}

// String returns the path of the directory, or the s3 URL of the bucket and prefix.
func (l Location) String() string {
	if !l.IsS3() {
		return l.Dir
	}
	return strings.TrimSuffix("s3://"+l.Bucket+"/"+l.Prefix, "/")
}

// ParseLocation parses a path, file:///PATH or s3://BUCKET/PREFIX. The error wraps ErrLocation. It does not contain
// text if text may include a secret.
func ParseLocation(text string) (Location, error) {
	scheme, rest, isURL := strings.Cut(text, "://")
	switch {
	case text == "":
		return Location{}, fmt.Errorf("%w: empty", ErrLocation)
	case !isURL:
		return Location{Dir: text}, nil
	case strings.Contains(rest, "@"):
		return Location{}, fmt.Errorf("%w: contains an @; put keys into "+
			"backup.s3.access-key-file and backup.s3.secret-key-file, or AWS_ACCESS_KEY_ID and "+
			"AWS_SECRET_ACCESS_KEY", ErrLocation)
	case strings.ContainsAny(rest, "?#"):
		return Location{}, fmt.Errorf("%w: %q contains ? or #; endpoint and region are settings, backup.s3", ErrLocation,
			text)
	}
	switch strings.ToLower(scheme) {
	case "file":
		return parseFile(text)
	case "s3":
		return parseBucket(text, rest)
	default:
		return Location{}, fmt.Errorf("%w: %q begins with %s://", ErrLocation, text, scheme)
	}
}

// ParseEndpoint parses the URL of an S3 server, http://HOST:PORT or https://HOST:PORT. The error does not contain text
// if text may include a secret.
func ParseEndpoint(text string) (host string, secure bool, err error) {
	const like = "a URL such as https://s3.example.com:9000"
	u, err := url.Parse(text)
	switch {
	case err != nil || u.User != nil: // it may include a secret
		return "", false, errors.New("not " + like + "; put keys into files or the environment")
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", false, fmt.Errorf("%q is not %s", text, like)
	case strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "":
		return "", false, fmt.Errorf("%q has more than a scheme, a host and a port; put the bucket into "+
			"s3://BUCKET/PREFIX", text)
	}
	return u.Host, u.Scheme == "https", nil
}

func parseFile(text string) (Location, error) {
	u, err := url.Parse(text)
	switch {
	case err != nil:
		return Location{}, fmt.Errorf("%w: %q: %w", ErrLocation, text, err)
	case u.Host != "" && u.Host != "localhost":
		return Location{}, fmt.Errorf("%w: %q names machine %q; a path needs a third slash, file:///PATH",
			ErrLocation, text, u.Host)
	case !filepath.IsAbs(u.Path):
		return Location{}, fmt.Errorf("%w: %q has no directory", ErrLocation, text)
	}
	return Location{Dir: filepath.Clean(u.Path)}, nil
}

func parseBucket(text, rest string) (Location, error) {
	bucket, prefix, _ := strings.Cut(rest, "/")
	prefix = strings.TrimSuffix(prefix, "/")
	name := regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	switch {
	case !name.MatchString(bucket) || strings.Contains(bucket, ".."):
		return Location{}, fmt.Errorf("%w: %q: invalid bucket name %q; it must have 3 to 63 lower-case letters, digits, "+
			"dots and hyphens", ErrLocation, text, bucket)
	case len(prefix) > maxPrefixBytes:
		return Location{}, fmt.Errorf("%w: prefix has %d bytes, limit %d", ErrLocation, len(prefix),
			maxPrefixBytes)
	}
	for part := range strings.SplitSeq(prefix, "/") {
		if prefix != "" && (part == "" || part == "." || part == "..") {
			return Location{}, fmt.Errorf("%w: %q: invalid prefix element %q", ErrLocation, text, part)
		}
		if strings.ContainsFunc(part, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\\' }) {
			return Location{}, fmt.Errorf("%w: %q: invalid character in the prefix",
				ErrLocation, text)
		}
	}
	return Location{Bucket: bucket, Prefix: prefix}, nil
}
