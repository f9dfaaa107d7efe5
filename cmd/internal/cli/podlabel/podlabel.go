// SPDX-License-Identifier: Apache-2.0

// Package podlabel implements the command that labels the pod of the active node in Kubernetes, so that a Service can
// select it.
package podlabel

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

const (
	requestLimit = 2 * time.Second
	// again is the interval at which the label is set even without a role change, because another client may have
	// removed it.
	again = time.Minute
	// answerLimit is the maximum number of bytes read from a response.
	answerLimit = 64 << 10
)

type flags struct {
	probe, probeCA string
	label          string
	pod, namespace string
	account        string // directory
	interval       time.Duration
}

// Command returns the `lockstep pod-label` command.
func Command(env *cli.Env) *cobra.Command {
	var f flags
	cmd := &cobra.Command{
		Use: "pod-label", GroupID: "run",
		Short: "Label the active node's pod in Kubernetes",
		Long: `Poll the node in the same pod until SIGINT or SIGTERM, and set a label of the pod to active or standby. If
the node does not respond, the label is standby. A Service that selects the value active routes to the active node.
The service account needs the verb patch on this pod.

The Helm chart runs this command as a second container of each node, with activeService.enabled. Lockstep clients do
not need such a Service.`,
		Example: `  lockstep pod-label --probe http://127.0.0.1:9420/activez
  lockstep pod-label --probe https://127.0.0.1:9420/activez --probe-ca /tls/ca.crt --interval 500ms`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.pod = value(f.pod, env, "POD_NAME")
			f.namespace = value(f.namespace, env, "POD_NAMESPACE")
			l, err := newLabeller(&f, env.Lookup)
			if err != nil {
				return err
			}
			return l.run(cmd.Context(), func(role string, err error) {
				if err != nil {
					_, _ = fmt.Fprintf(env.Stderr, "pod %s: %v\n", f.pod, err)
					return
				}
				_ = env.Print.Sentence("pod %s is %s", f.pod, role)
				_ = env.Print.Object(map[string]string{"pod": f.pod, "role": role})
			})
		},
	}
	cmd.Flags().StringVar(&f.probe, "probe", "http://127.0.0.1:9420/activez",
		"URL that returns 200 while the node is active (metrics.listen)")
	cmd.Flags().StringVar(&f.probeCA, "probe-ca", "",
		"CA certificates for an https URL; default: the CAs of the system")
	cmd.Flags().StringVar(&f.label, "label", "lockstep-mq.io/role", "label to set to active or standby")
	cmd.Flags().StringVar(&f.pod, "pod", "", "pod name; default: environment variable POD_NAME")
	cmd.Flags().StringVar(&f.namespace, "namespace", "", "pod namespace; default: environment variable POD_NAMESPACE")
	cmd.Flags().StringVar(&f.account, "service-account", "/var/run/secrets/kubernetes.io/serviceaccount",
		"directory with the files token and ca.crt of the service account")
	cmd.Flags().DurationVar(&f.interval, "interval", time.Second, "polling interval")
	return cmd
}

func value(given string, env *cli.Env, name string) string {
	if given == "" {
		given, _ = env.Lookup(name)
	}
	return given
}

type labeller struct {
	flags

	server    string // URL of the pod
	node, api *http.Client
}

func newLabeller(f *flags, lookup func(string) (string, bool)) (*labeller, error) {
	if f.pod == "" || f.namespace == "" {
		return nil, cli.Usage("the pod is unknown: set --pod and --namespace, or POD_NAME and POD_NAMESPACE")
	}
	if f.interval <= 0 {
		return nil, cli.Usage("--interval %s must be positive", f.interval)
	}
	host, _ := lookup("KUBERNETES_SERVICE_HOST")
	port, _ := lookup("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return nil, errors.New("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: " +
			"not running in a Kubernetes pod")
	}
	api, err := clientFor(filepath.Join(f.account, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the service account: %w", err)
	}
	node, err := clientFor(f.probeCA)
	if err != nil {
		return nil, fmt.Errorf("--probe-ca: %w", err)
	}
	return &labeller{
		flags: *f, api: api, node: node,
		server: "https://" + net.JoinHostPort(host, port) + "/api/v1/namespaces/" + url.PathEscape(f.namespace) + "/pods/" +
			url.PathEscape(f.pod),
	}, nil
}

// clientFor returns a client that trusts the CAs in a file, or the system's CAs if file is empty.
func clientFor(file string) (*http.Client, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read the CA certificates: %w", err)
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s contains no certificate", file)
		}
	}
	return &http.Client{Timeout: requestLimit, Transport: &http.Transport{TLSClientConfig: secure}}, nil
}

// run sets the label after each role change, until ctx ends. It calls reported for each change, and once for
// consecutive equal errors.
func (l *labeller) run(ctx context.Context, reported func(role string, err error)) error {
	ticker := time.NewTicker(l.interval)
	defer ticker.Stop()
	var is, failed string
	var since time.Time
	for {
		role := l.role(ctx)
		if role != is || time.Since(since) >= again {
			switch err := l.set(ctx, role); {
			case ctx.Err() != nil:
				return nil
			case err != nil:
				if failed != err.Error() {
					reported("", err)
				}
				is, failed = "", err.Error()
			default:
				if role != is {
					reported(role, nil)
				}
				is, since, failed = role, time.Now(), ""
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// role returns the role of the node: standby unless the node reports that it is active.
func (l *labeller) role(ctx context.Context) string {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, l.probe, http.NoBody)
	if err != nil {
		return "standby"
	}
	answer, err := l.node.Do(r)
	if err != nil {
		return "standby"
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return "standby"
	}
	return "active"
}

func (l *labeller) set(ctx context.Context, role string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": map[string]string{l.label: role}}})
	if err != nil {
		return fmt.Errorf("encode the patch: %w", err)
	}
	token, err := os.ReadFile(filepath.Join(l.account, "token")) // read for each request: it is replaced every hour
	if err != nil {
		return fmt.Errorf("read the token of the service account: %w", err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPatch, l.server, bytes.NewReader(patch))
	if err != nil {
		return fmt.Errorf("call the API server: %w", err)
	}
	r.Header.Set("Content-Type", "application/merge-patch+json")
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	answer, err := l.api.Do(r)
	if err != nil {
		return fmt.Errorf("set the label %s: %w", l.label, err)
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, answerLimit))
	if answer.StatusCode != http.StatusOK {
		var status struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(text, &status) // without a message, only the status code is reported
		return fmt.Errorf("set the label %s: the API server returned %s: %s; "+
			"the service account needs the verb patch on this pod", l.label, answer.Status, status.Message)
	}
	return nil
}
