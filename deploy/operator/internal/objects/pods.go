// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// ErrInvalid is returned for a spec that contradicts itself.
var ErrInvalid = errors.New("invalid spec")

const (
	userID     = 65532
	secretMode = 0o440
)

func (p *Pair) serviceAccount() string {
	name := p.s.ServiceAccount.Name
	if *p.s.ServiceAccount.Create {
		set(&name, p.Name())
	} else {
		set(&name, "default")
	}
	return name
}

func (p *Pair) pod(containers ...corev1.Container) corev1.PodSpec {
	yes, no, id, policy := true, false, int64(userID), corev1.FSGroupChangeOnRootMismatch
	return corev1.PodSpec{
		ServiceAccountName: p.serviceAccount(), AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: &yes, RunAsUser: &id, RunAsGroup: &id, FSGroup: &id, FSGroupChangePolicy: &policy,
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
		Affinity: p.affinity(), NodeSelector: p.s.NodeSelector, Tolerations: p.s.Tolerations,
		TopologySpreadConstraints: p.s.TopologySpreadConstraints, PriorityClassName: p.s.PriorityClassName,
		ImagePullSecrets: p.s.ImagePullSecrets, Containers: containers,
	}
}

func (p *Pair) affinity() *corev1.Affinity {
	term := corev1.PodAffinityTerm{TopologyKey: "kubernetes.io/hostname", LabelSelector: p.nodesAndWitness()}
	if p.s.AntiAffinity == required {
		return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term},
		}}
	}
	return &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
			{Weight: 100, PodAffinityTerm: term},
		},
	}}
}

func containerSecurity() *corev1.SecurityContext {
	yes, no := true, false
	return &corev1.SecurityContext{
		AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
		Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
}

func fieldVariable(name, path string) corev1.EnvVar {
	return corev1.EnvVar{
		Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}},
	}
}

func (p *Pair) container(name string) corev1.Container {
	return corev1.Container{
		Name: name, Image: p.image(), ImagePullPolicy: p.s.Image.PullPolicy, SecurityContext: containerSecurity(),
	}
}

func (p *Pair) nodePod() corev1.PodSpec {
	node := p.container("lockstep")
	node.Args = []string{"serve", "--config=/etc/lockstep/node.yaml"}
	advertise := func(port int) string { return fmt.Sprintf("$(LOCKSTEP_NODE_NAME).%s:%d", p.domain(), port) }
	node.Env = []corev1.EnvVar{
		fieldVariable("LOCKSTEP_NODE_NAME", "metadata.name"), {Name: "LOCKSTEP_ADVERTISE", Value: advertise(grpcPort)},
	}
	node.Ports = []corev1.ContainerPort{
		containerPort("grpc", grpcPort), containerPort("metrics", portOf(p.s.Metrics.Listen)),
	}
	if p.HasWitness() {
		node.Env = append(node.Env, corev1.EnvVar{Name: "LOCKSTEP_COORDINATOR_RAFT_ADVERTISE", Value: advertise(raftPort)})
		node.Ports = append(node.Ports, containerPort("raft", raftPort))
	}
	node.Env = append(node.Env, p.clientTLS()...)
	if listen := p.s.Console.Listen; listen != "" {
		node.Ports = append(node.Ports, containerPort("console", portOf(listen)))
	}
	node.StartupProbe = &corev1.Probe{ProbeHandler: p.get("/healthz"), PeriodSeconds: 2, FailureThreshold: 900}
	node.LivenessProbe = &corev1.Probe{
		ProbeHandler: p.get("/healthz"), PeriodSeconds: 10, TimeoutSeconds: 5, FailureThreshold: 6,
	}
	node.ReadinessProbe = &corev1.Probe{ProbeHandler: p.get("/readyz"), PeriodSeconds: 2, FailureThreshold: 2}
	node.Resources = *p.s.Resources
	node.VolumeMounts = []corev1.VolumeMount{
		{Name: "data", MountPath: "/data"}, {Name: "config", MountPath: "/etc/lockstep", ReadOnly: true},
	}
	volumes := []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{
		ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: p.Name()}},
	}}}
	for _, m := range p.mounts() {
		node.VolumeMounts = append(node.VolumeMounts, corev1.VolumeMount{Name: m.name, MountPath: m.path, ReadOnly: true})
		volumes = append(volumes, m.volume())
	}
	containers := []corev1.Container{node}
	if p.s.ActiveService.Enabled {
		containers = append(containers, p.roleContainer())
		volumes = append(volumes, tokenVolume())
	}
	spec := p.pod(containers...)
	spec.Volumes = volumes
	spec.TerminationGracePeriodSeconds = &p.s.TerminationGracePeriodSeconds
	return spec
}

// clientTLS returns the variables of commands that connect with the nodes' certificate. A node ignores them.
func (p *Pair) clientTLS() []corev1.EnvVar {
	if !p.TLS() {
		return nil
	}
	return []corev1.EnvVar{
		{Name: "LOCKSTEP_CLIENT_TLS_CA", Value: "/tls/ca.crt"},
		{Name: "LOCKSTEP_CLIENT_TLS_CERT", Value: "/tls/tls.crt"},
		{Name: "LOCKSTEP_CLIENT_TLS_KEY", Value: "/tls/tls.key"},
	}
}

func containerPort(name string, port int32) corev1.ContainerPort {
	return corev1.ContainerPort{Name: name, ContainerPort: port, Protocol: corev1.ProtocolTCP}
}

func (p *Pair) get(path string) corev1.ProbeHandler {
	scheme := corev1.URISchemeHTTPS
	if !p.TLS() {
		scheme = corev1.URISchemeHTTP
	}
	return corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("metrics"), Scheme: scheme},
	}
}

// roleContainer sets the label of the pod of the active node.
func (p *Pair) roleContainer() corev1.Container {
	c := p.container("role")
	scheme := strings.ToLower(string(p.get("").HTTPGet.Scheme))
	c.Args = []string{
		"pod-label", fmt.Sprintf("--probe=%s://127.0.0.1:%d/activez", scheme, portOf(p.s.Metrics.Listen)),
	}
	c.Env = []corev1.EnvVar{
		fieldVariable("POD_NAME", "metadata.name"), fieldVariable("POD_NAMESPACE", "metadata.namespace"),
	}
	c.Resources = resources("10m", "32Mi", "64Mi")
	c.VolumeMounts = []corev1.VolumeMount{
		{Name: "kubernetes", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true},
	}
	if p.TLS() {
		c.Args = append(c.Args, "--probe-ca=/tls/ca.crt")
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "tls", MountPath: "/tls", ReadOnly: true})
	}
	return c
}

func tokenVolume() corev1.Volume {
	mode, expires := int32(secretMode), int64(3607)
	return corev1.Volume{Name: "kubernetes", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
		DefaultMode: &mode,
		Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &expires}},
			{ConfigMap: &corev1.ConfigMapProjection{
				LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
				Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
			}},
		},
	}}}
}

// mount is a mounted Secret.
type mount struct {
	name, path, secret string
	items              []corev1.KeyToPath
}

func (m mount) volume() corev1.Volume {
	mode := int32(secretMode)
	return corev1.Volume{Name: m.name, VolumeSource: corev1.VolumeSource{
		Secret: &corev1.SecretVolumeSource{SecretName: m.secret, Items: m.items, DefaultMode: &mode},
	}}
}

func (p *Pair) mounts() (all []mount) {
	add := func(name, path, secret string, items ...corev1.KeyToPath) {
		if secret != "" {
			all = append(all, mount{name, path, secret, items})
		}
	}
	if p.TLS() {
		add("tls", "/tls", p.TLSSecret())
	}
	add("peer", "/secrets/peer", p.s.PeerToken.SecretName)
	add("site", "/secrets/site", p.s.Site.TokenSecret)
	if p.s.Fleet.Pair != "" {
		add("fleet", "/secrets/fleet", p.s.Fleet.TokenSecret)
	}
	add("site-ca", "/secrets/site-ca", p.s.Site.CASecret, corev1.KeyToPath{Key: "ca.crt", Path: "ca.crt"})
	add("metrics-token", "/secrets/metrics", p.s.Metrics.TokenSecret)
	if p.usesEtcd() {
		add("etcd-password", "/secrets/etcd-password", p.s.Coordinator.Etcd.PasswordSecret)
		add("etcd-tls", "/secrets/etcd-tls", p.s.Coordinator.Etcd.TLSSecret)
	}
	return all
}

func (p *Pair) witnessPod() corev1.PodSpec {
	c := p.container("witness")
	c.Args = []string{
		"witness", "--data-dir=/data", fmt.Sprintf("--listen=0.0.0.0:%d", raftPort),
		fmt.Sprintf("--advertise=$(POD_NAME).%s:%d", p.domain(), raftPort),
		"--voters=" + strings.Join(p.voters(), ","),
	}
	c.Env = []corev1.EnvVar{fieldVariable("POD_NAME", "metadata.name")}
	c.Ports = []corev1.ContainerPort{containerPort("raft", raftPort)}
	probe := corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("raft")}}
	c.LivenessProbe = &corev1.Probe{ProbeHandler: probe, PeriodSeconds: 10, FailureThreshold: 6}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: probe, PeriodSeconds: 2}
	c.Resources = *p.s.Witness.Resources
	c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	var volumes []corev1.Volume
	if p.TLS() {
		c.Args = append(c.Args, "--raft-ca=/tls/ca.crt", "--raft-cert=/tls/tls.crt", "--raft-key=/tls/tls.key")
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "tls", MountPath: "/tls", ReadOnly: true})
		volumes = append(volumes, mount{name: "tls", secret: p.TLSSecret()}.volume())
	} else {
		c.Args = append(c.Args, "--insecure")
	}
	spec := p.pod(c)
	spec.Volumes = volumes
	return spec
}

func (p *Pair) networkPolicy() client.Object {
	ports := func(numbers ...int32) (all []networkingv1.NetworkPolicyPort) {
		for _, n := range numbers {
			port, tcp := intstr.FromInt32(n), corev1.ProtocolTCP
			all = append(all, networkingv1.NetworkPolicyPort{Port: &port, Protocol: &tcp})
		}
		return all
	}
	from := func(peers []networkingv1.NetworkPolicyPeer) []networkingv1.NetworkPolicyPeer {
		if len(peers) == 0 {
			return []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}
		}
		return peers
	}
	clientPorts := []int32{grpcPort}
	if listen := p.s.Console.Listen; listen != "" {
		clientPorts = append(clientPorts, portOf(listen))
	}
	own := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: p.Selector()}}}
	return &networkingv1.NetworkPolicy{
		TypeMeta: typeMeta("networking.k8s.io/v1", "NetworkPolicy"), ObjectMeta: p.meta(p.Name(), ""),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *p.nodesAndWitness(), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{
				{From: own, Ports: ports(grpcPort, raftPort)},
				{From: from(p.s.NetworkPolicy.Clients), Ports: ports(clientPorts...)},
				{From: from(p.s.NetworkPolicy.Metrics), Ports: ports(portOf(p.s.Metrics.Listen))},
			},
		},
	}
}

// certificate returns a Certificate of cert-manager.
func (p *Pair) certificate() client.Object {
	names := []any{}
	add := func(all ...string) {
		for _, name := range all {
			names = append(names, name)
		}
	}
	for i := range Nodes {
		add(p.PodName(i) + "." + p.domain())
	}
	if p.HasWitness() {
		add(p.WitnessName() + "-0." + p.domain())
	}
	service := func(name string) {
		name += "." + p.o.Namespace + ".svc"
		add(name, name+"."+p.s.ClusterDomain)
	}
	service(p.Name())
	if p.s.ActiveService.Enabled {
		service(p.Name() + "-active")
	}
	add("localhost")
	add(p.s.TLS.CertManager.DNSNames...)
	c := p.s.TLS.CertManager
	u := &unstructured.Unstructured{Object: values{
		"apiVersion": "cert-manager.io/v1", "kind": "Certificate",
		"spec": values{
			"secretName": p.TLSSecret(), "duration": c.Duration, "renewBefore": c.RenewBefore,
			"privateKey": values{"algorithm": "ECDSA", "size": int64(256), "rotationPolicy": "Always"},
			"usages":     []any{"server auth", "client auth"}, "dnsNames": names, "ipAddresses": []any{"127.0.0.1"},
			"issuerRef": values{"name": c.IssuerRef.Name, "kind": c.IssuerRef.Kind, "group": c.IssuerRef.Group},
		},
	}}
	meta := p.meta(p.Name(), "")
	u.SetName(meta.Name)
	u.SetNamespace(meta.Namespace)
	u.SetLabels(meta.Labels)
	return u
}
