// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"strings"

	"github.com/lockstep-mq/lockstep/fleet"
)

// Fleet configures the membership of a pair in a fleet: pairs with a common directory of queues in etcd.
type Fleet struct {
	Pair      string   `key:"pair" usage:"name of this pair in a fleet: 1 to 63 letters, digits, ., - and _. Equal on both nodes, unique in the fleet. If empty, the pair joins no fleet. Not with site.name"`
	Prefix    string   `key:"prefix" usage:"key prefix of the fleet in etcd; equal on all pairs"`
	Endpoints []string `key:"endpoints" usage:"endpoints of the etcd of the fleet, comma-separated or a list; TLS, user and password are those of coordinator.etcd. Default: coordinator.etcd.endpoints"`
	Labels    []string `key:"labels" usage:"labels of this pair as key=value, comma-separated or a list, at most 32; placement rules select pairs by their labels"`
	TokenFile string   `key:"token-file" usage:"file with secrets shared by all pairs of the fleet, one per line: the first is sent to other pairs, all are accepted from them. Pairs authenticate each other with it, for moves of queues and for calls that they forward for AMQP clients and the console"`
}

// FleetEndpoints returns the endpoints of the etcd of the fleet.
func (c *Config) FleetEndpoints() []string {
	if len(c.Fleet.Endpoints) == 0 && c.Coordinator.Type == CoordinatorEtcd {
		return c.Coordinator.Etcd.Endpoints
	}
	return c.Fleet.Endpoints
}

// UsesEtcd reports whether the node is a client of etcd.
func (c *Config) UsesEtcd() bool { return c.Coordinator.Type == CoordinatorEtcd || c.Fleet.Pair != "" }

// Map returns the labels by key.
func (f *Fleet) Map() map[string]string {
	labels := make(map[string]string, len(f.Labels))
	for _, label := range f.Labels {
		key, value, _ := strings.Cut(label, "=")
		labels[key] = value
	}
	return labels
}

func (c *Config) checkFleet(k *checker) {
	f := &c.Fleet
	if f.Pair == "" {
		if len(f.Endpoints) > 0 || len(f.Labels) > 0 || f.TokenFile != "" {
			k.fail("fleet.pair", "required with fleet.endpoints, fleet.labels and fleet.token-file")
		}
		return
	}
	if err := fleet.CheckPair(f.Pair); err != nil {
		k.fail("fleet.pair", "%v", err)
	}
	if c.Site.Name != "" || len(c.Site.Remote) > 0 {
		k.fail("fleet.pair", "a pair of a fleet cannot have a replica at another site, or be one, because it would create "+
			"no queues after a switch: remove site.name and site.remote, or run `lockstep fleet leave` and remove fleet.pair")
	}
	c.checkFleetPrefix(k)
	checkEndpoints(k, "fleet.endpoints", f.Endpoints)
	switch {
	case c.Coordinator.Type == CoordinatorEtcd:
	case len(f.Endpoints) == 0:
		k.fail("fleet.endpoints", "required with coordinator.type %s, such as 127.0.0.1:2379", c.Coordinator.Type)
	default:
		c.checkEtcdAccess(k)
	}
	c.checkFleetReach(k)
	labels := f.Map()
	for _, label := range f.Labels {
		if key, _, ok := strings.Cut(label, "="); !ok || key == "" {
			k.fail("fleet.labels", "%.80q is not key=value", label)
			return
		}
	}
	if len(labels) < len(f.Labels) {
		k.fail("fleet.labels", "a key is set more than once")
	}
	if err := fleet.CheckLabels(labels); err != nil {
		k.fail("fleet.labels", "%v", err)
	}
}

// checkFleetReach rejects a fleet with pairs that cannot authenticate each other, unless Insecure is set or only
// processes on this host can connect to the node.
func (c *Config) checkFleetReach(k *checker) {
	if !c.Insecure && !c.TLS.On() && c.Fleet.TokenFile == "" && !LocalOnly(c.Listen) {
		k.fail("fleet.token-file", "without a client certificate (tls.cert), other pairs cannot authenticate this one when "+
			"queues are moved: set fleet.token-file at all pairs, or permit any client to act as another pair with --insecure")
	}
}

// checkFleetPrefix rejects an empty prefix, and one that overlaps with the prefix of the pair's keys.
func (c *Config) checkFleetPrefix(k *checker) {
	own := strings.Trim(c.Fleet.Prefix, "/") + "/"
	if own == "/" {
		k.fail("fleet.prefix", "a prefix is required, such as %s", fleet.DefaultPrefix)
		return
	}
	pair := strings.Trim(c.Coordinator.Etcd.Prefix, "/") + "/"
	if c.Coordinator.Type == CoordinatorEtcd && (strings.HasPrefix(own, pair) || strings.HasPrefix(pair, own)) {
		k.fail("fleet.prefix", "%q and coordinator.etcd.prefix %q overlap", c.Fleet.Prefix, c.Coordinator.Etcd.Prefix)
	}
}

func checkEndpoints(k *checker, key string, endpoints []string) {
	for _, endpoint := range endpoints {
		host := strings.TrimPrefix(strings.TrimPrefix(endpoint, "http://"), "https://")
		if _, _, err := net.SplitHostPort(host); err != nil {
			k.fail(key, "%q is not host:port", endpoint)
		}
	}
}
