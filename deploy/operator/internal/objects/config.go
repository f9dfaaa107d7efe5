// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
)

type values = map[string]any

// Config returns node.yaml: the settings of the spec, overridden by those of the operator.
func (p *Pair) Config() (string, error) {
	config := values{"memory": values{"budget": "512MiB"}} // the default of the chart
	if c := p.s.Config; c != nil && len(c.Raw) > 0 {
		more := values{}
		if err := json.Unmarshal(c.Raw, &more); err != nil {
			return "", fmt.Errorf("config: %w", err)
		}
		merge(config, more)
	}
	own := values{
		"data": values{"dir": "/data"}, "listen": fmt.Sprintf("0.0.0.0:%d", grpcPort), "coordinator": p.coordinator(),
	}
	metrics := values{"listen": p.s.Metrics.Listen}
	if p.TLS() {
		tls := files("/tls")
		tls["client-auth"] = p.s.TLS.ClientAuth
		own["tls"] = tls
		metrics["tls"] = values{"own": true}
	} else {
		own["insecure"] = true
	}
	own["metrics"] = metrics
	if p.s.Metrics.TokenSecret != "" {
		metrics["token-file"] = "/secrets/metrics/token"
	}
	if p.s.PeerToken.SecretName != "" {
		own["peer-token-file"] = "/secrets/peer/token"
	}
	if listen := p.s.Console.Listen; listen != "" {
		console := values{"listen": listen}
		if p.TLS() {
			console["tls"] = values{"own": true}
		}
		own["console"] = console
	}
	if err := p.site(own); err != nil {
		return "", err
	}
	if err := p.fleet(own); err != nil {
		return "", err
	}
	merge(config, own)
	text, err := yaml.Marshal(config)
	if err != nil {
		return "", fmt.Errorf("config: %w", err)
	}
	return strings.TrimSuffix(string(text), "\n"), nil
}

// files returns the settings of a certificate in a directory.
func files(dir string) values {
	return values{"cert": dir + "/tls.crt", "key": dir + "/tls.key", "ca": dir + "/ca.crt"}
}

func (p *Pair) site(own values) error {
	s := p.s.Site
	if len(s.Remote) == 0 && (s.TokenSecret != "" || s.CASecret != "") {
		return fmt.Errorf("%w: site.remote is required with site.tokenSecret and site.caSecret", ErrInvalid)
	}
	if len(s.Remote) > 0 && s.Name == "" {
		return fmt.Errorf("%w: site.name is required with site.remote", ErrInvalid)
	}
	if s.Name == "" {
		return nil
	}
	site := values{"name": s.Name}
	if len(s.Remote) > 0 {
		site["remote"] = s.Remote
	}
	if s.TokenSecret != "" {
		site["token-file"] = "/secrets/site/token"
	}
	if s.CASecret != "" {
		site["ca"] = "/secrets/site-ca/ca.crt"
	}
	own["site"] = site
	return nil
}

// usesEtcd reports whether the nodes use etcd: for the cluster record or for a fleet.
func (p *Pair) usesEtcd() bool {
	return p.s.Coordinator.Type == coordinatorEtcd || p.s.Fleet.Pair != ""
}

func (p *Pair) coordinator() values {
	coordinator, etcd := values{}, values{}
	if p.HasWitness() {
		raft := values{"listen": fmt.Sprintf("0.0.0.0:%d", raftPort), "voters": p.voters()}
		if p.TLS() {
			raft["tls"] = files("/tls")
		}
		coordinator["type"], coordinator["raft"] = "raft", raft
	} else {
		coordinator["type"] = coordinatorEtcd
		prefix := p.s.Coordinator.Etcd.Prefix
		set(&prefix, fmt.Sprintf("/lockstep/%s/%s/", p.o.Namespace, p.o.Name))
		etcd["endpoints"], etcd["prefix"] = p.s.Coordinator.Etcd.Endpoints, prefix
	}
	if !p.usesEtcd() {
		return coordinator
	}
	e := p.s.Coordinator.Etcd
	if e.Username != "" {
		etcd["username"] = e.Username
	}
	if e.PasswordSecret != "" {
		etcd["password-file"] = "/secrets/etcd-password/password"
	}
	if e.TLSSecret != "" {
		tls := values{"ca": "/secrets/etcd-tls/ca.crt"}
		if *e.TLSClientCertificate {
			tls = files("/secrets/etcd-tls")
		}
		etcd["tls"] = tls
	}
	if len(etcd) > 0 {
		coordinator["etcd"] = etcd
	}
	return coordinator
}

func (p *Pair) fleet(own values) error {
	f := p.s.Fleet
	if f.Pair == "" {
		return nil
	}
	if p.s.Site.Name != "" || len(p.s.Site.Remote) > 0 {
		return fmt.Errorf("%w: a pair of a fleet cannot have a replica at another site: remove site or fleet.pair",
			ErrInvalid)
	}
	if p.HasWitness() && len(f.Endpoints) == 0 {
		return fmt.Errorf("%w: fleet.endpoints is required with coordinator.type witness", ErrInvalid)
	}
	fleet := values{"pair": f.Pair}
	if f.Prefix != "" {
		fleet["prefix"] = f.Prefix
	}
	if f.TokenSecret != "" {
		fleet["token-file"] = "/secrets/fleet/token"
	}
	if len(f.Endpoints) > 0 {
		fleet["endpoints"] = f.Endpoints
	}
	if len(f.Labels) > 0 {
		fleet["labels"] = labelList(f)
	}
	own["fleet"] = fleet
	return nil
}

func labelList(f v1alpha1.FleetMember) []string {
	var labels []string
	for k, v := range f.Labels {
		labels = append(labels, k+"="+v)
	}
	slices.Sort(labels)
	return labels
}

// merge copies the values of src to dst, recursively.
func merge(dst, src values) {
	for k, v := range src {
		inner, isMap := v.(values)
		existing, wasMap := dst[k].(values)
		if isMap && wasMap {
			merge(existing, inner)
			continue
		}
		dst[k] = v
	}
}
