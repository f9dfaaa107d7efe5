// SPDX-License-Identifier: Apache-2.0

package objects

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
)

const (
	coordinatorWitness = "witness"
	coordinatorEtcd    = "etcd"
	tlsSecret          = "secret"
	tlsCertManager     = "certManager"
	tlsNone            = "none"
	required           = "required"
)

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func pointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

// withDefaults returns a copy with the defaults of the values of the chart.
func withDefaults(spec v1alpha1.PairSpec) v1alpha1.PairSpec {
	s := *spec.DeepCopy()
	set(&s.Image.Repository, "lockstep")
	set(&s.Image.PullPolicy, corev1.PullIfNotPresent)
	set(&s.ClusterDomain, "cluster.local")
	set(&s.Coordinator.Type, coordinatorWitness)
	pointer(&s.Coordinator.Etcd.TLSClientCertificate, true)
	set(&s.TLS.Mode, tlsSecret)
	set(&s.TLS.ClientAuth, "require")
	set(&s.TLS.CertManager.IssuerRef.Kind, "Issuer")
	set(&s.TLS.CertManager.IssuerRef.Group, "cert-manager.io")
	set(&s.TLS.CertManager.Duration, "2160h")
	set(&s.TLS.CertManager.RenewBefore, "720h")
	set(&s.Metrics.Listen, "0.0.0.0:9420")
	set(&s.Service.Type, corev1.ServiceTypeClusterIP)
	set(&s.Service.Port, grpcPort)
	set(&s.ActiveService.Type, corev1.ServiceTypeClusterIP)
	pointer(&s.Persistence.Size, resource.MustParse("20Gi"))
	if len(s.Persistence.AccessModes) == 0 {
		s.Persistence.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	pointer(&s.Resources, resources("500m", "1Gi", "1Gi"))
	set(&s.AntiAffinity, required)
	set(&s.TerminationGracePeriodSeconds, 60)
	pointer(&s.Witness.Persistence.Size, resource.MustParse("1Gi"))
	pointer(&s.Witness.Resources, resources("50m", "64Mi", "128Mi"))
	pointer(&s.ServiceAccount.Create, true)
	pointer(&s.PodDisruptionBudget.Enabled, true)
	return s
}

func resources(cpu, memory, limit string) corev1.ResourceRequirements {
	return corev1.ResourceRequirements{
		Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse(memory),
		},
		Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(limit)},
	}
}
