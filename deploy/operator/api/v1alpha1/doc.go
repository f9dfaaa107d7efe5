// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 contains the custom resources of the operator: LockstepPair, LockstepFleet and LockstepQueue.
//
// The fields of PairSpec have the names, the meanings and the defaults of the values of the Helm chart
// (deploy/helm/lockstep/values.yaml).
//
// +kubebuilder:object:generate=true
// +kubebuilder:validation:Optional
// +groupName=lockstep-mq.io
package v1alpha1

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Group is the API group of the resources.
const Group = "lockstep-mq.io"

// GroupVersion returns the group and the version of the resources.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: Group, Version: "v1alpha1"}
}

// AddToScheme adds the resources to a scheme. It always returns nil.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &LockstepPair{}, &LockstepPairList{}, &LockstepFleet{}, &LockstepFleetList{},
		&LockstepQueue{}, &LockstepQueueList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}

// Types of conditions.
const (
	// ConditionReady reports that clients can use the pair, all pairs of the fleet, or the queue.
	ConditionReady = "Ready"
	// ConditionInSync reports that the active node has an in-sync standby, in each pair of a fleet.
	ConditionInSync = "InSync"
	// ConditionProgressing reports that the operator is changing objects, replacing pods or draining pairs.
	ConditionProgressing = "Progressing"
	// ConditionDegraded reports a problem that may require a person, such as an invalid spec, missing credentials, or a
	// pair that is not in sync although the operator is not changing it.
	ConditionDegraded = "Degraded"
	// ConditionVolumesResized reports that all volumes of a pair have at least the requested size.
	ConditionVolumesResized = "VolumesResized"
)

// SkipDrainAnnotation, with the value "true" on a LockstepPair, makes its deletion skip the drain. It is for pairs that
// are lost permanently.
const SkipDrainAnnotation = Group + "/skip-drain"
