// SPDX-License-Identifier: Apache-2.0

package s3

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

const (
	keyFileBytes = 64 << 10    // maximum size of a key file
	keysFor      = time.Minute // minimum interval between two reads of the files
)

// keysError is returned if keys are missing or cannot be read. It never contains a key.
type keysError struct{ err error }

func (e *keysError) Error() string { return e.err.Error() }
func (e *keysError) Unwrap() error { return e.err }

// credentials returns the source of the access keys. If keys are missing, the first request fails.
func (o Options) credentials() (*credentials.Credentials, error) {
	if (o.AccessKeyFile == "") != (o.SecretKeyFile == "") {
		return nil, fmt.Errorf("%w: access key file and secret key file must be set together", ErrOptions)
	}
	if o.AccessKeyFile != "" {
		return credentials.New(&keyFiles{o: o}), nil
	}
	from := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	if o.Endpoint == amazon {
		from = append(from, &credentials.IAM{Client: &http.Client{Timeout: dialLimit}})
	}
	return credentials.New(&requiredKeys{Chain: credentials.Chain{Providers: from}}), nil
}

// keyFiles reads the files again after a minute.
type keyFiles struct {
	o    Options
	read time.Time
}

func (k *keyFiles) Retrieve() (credentials.Value, error) { return k.RetrieveWithCredContext(nil) }
func (k *keyFiles) IsExpired() bool                      { return time.Since(k.read) > keysFor }

func (k *keyFiles) RetrieveWithCredContext(*credentials.CredContext) (v credentials.Value, err error) {
	v.SignerType = credentials.SignatureV4
	for _, f := range []struct {
		path string
		to   *string
	}{
		{k.o.AccessKeyFile, &v.AccessKeyID},
		{k.o.SecretKeyFile, &v.SecretAccessKey},
		{k.o.SessionTokenFile, &v.SessionToken},
	} {
		if f.path == "" {
			continue
		}
		if *f.to, err = readKey(f.path); err != nil {
			return credentials.Value{}, &keysError{err}
		}
	}
	k.read = time.Now()
	return v, nil
}

func readKey(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("read a key: %w", err)
	}
	if info.Size() > keyFileBytes || info.IsDir() {
		return "", fmt.Errorf("%s is not a key file", path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read a key: %w", err)
	}
	key := strings.TrimSpace(string(b))
	if key == "" || strings.ContainsAny(key, " \t\r\n") {
		return "", fmt.Errorf("%s must contain one key on one line", path)
	}
	return key, nil
}

// requiredKeys returns an error if it finds no keys.
type requiredKeys struct{ credentials.Chain }

func (s *requiredKeys) Retrieve() (credentials.Value, error) { return s.RetrieveWithCredContext(nil) }

func (s *requiredKeys) RetrieveWithCredContext(cc *credentials.CredContext) (credentials.Value, error) {
	if cc == nil {
		cc = &credentials.CredContext{}
	}
	v, err := s.Chain.RetrieveWithCredContext(cc)
	if err != nil {
		return v, &keysError{fmt.Errorf("find keys: %w", err)}
	}
	if v.AccessKeyID == "" || v.SecretAccessKey == "" {
		return v, &keysError{errors.New("no access key: set backup.s3.access-key-file and " +
			"backup.s3.secret-key-file, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment of this process")}
	}
	return v, nil
}
