// SPDX-License-Identifier: Apache-2.0

// Package controller contains the controllers of LockstepPair, LockstepFleet and LockstepQueue.
package controller

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
)

// fieldManager is the name of the operator in managed fields and events.
const fieldManager = "lockstep-operator"

// errNotOwned is returned if an object exists that belongs to something else, such as a release of the Helm chart.
var errNotOwned = errors.New("object exists and is not controlled by this resource")

// apply creates or changes an object by server-side apply, with owner as its controller. An existing object of another
// owner is not changed. apply returns the generation of the object.
func apply(ctx context.Context, c client.Client, owner, object client.Object) (int64, error) {
	kind := object.GetObjectKind().GroupVersionKind()
	existing, ok := object.DeepCopyObject().(client.Object)
	if !ok {
		return 0, fmt.Errorf("%s is not an object", kind.Kind)
	}
	err := c.Get(ctx, client.ObjectKeyFromObject(object), existing)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return 0, fmt.Errorf("read %s %s: %w", kind.Kind, object.GetName(), err)
	case !metav1.IsControlledBy(existing, owner):
		return 0, fmt.Errorf("%w: %s %s", errNotOwned, kind.Kind, object.GetName())
	}
	if err := controllerutil.SetControllerReference(owner, object, c.Scheme()); err != nil {
		return 0, fmt.Errorf("%s %s: %w", kind.Kind, object.GetName(), err)
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return 0, fmt.Errorf("%s %s: %w", kind.Kind, object.GetName(), err)
	}
	delete(content, "status")
	withoutNull(content)
	u := &unstructured.Unstructured{Object: content}
	err = c.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(fieldManager),
		client.ForceOwnership)
	if err != nil {
		return 0, fmt.Errorf("apply %s %s: %w", kind.Kind, object.GetName(), err)
	}
	return u.GetGeneration(), nil
}

// unlessGone wraps an error of the read of a resource. It returns nil if the resource does not exist.
func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("read the resource: %w", err)
}

// withoutNull removes null values, such as unset timestamps, and empty status objects, recursively.
func withoutNull(value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			if inner == nil {
				delete(v, key)
				continue
			}
			withoutNull(inner)
			if m, ok := inner.(map[string]any); ok && len(m) == 0 && key == "status" {
				delete(v, key)
			}
		}
	case []any:
		for _, inner := range v {
			withoutNull(inner)
		}
	}
}

// setCondition sets a condition, and reports whether its status or reason changed.
func setCondition(all *[]metav1.Condition, generation int64, kind string, is bool, reason, message string) bool {
	status := metav1.ConditionFalse
	if is {
		status = metav1.ConditionTrue
	}
	before := meta.FindStatusCondition(*all, kind)
	changed := before == nil || before.Status != status || before.Reason != reason
	meta.SetStatusCondition(all, metav1.Condition{
		Type: kind, Status: status, Reason: reason, Message: message, ObservedGeneration: generation,
	})
	return changed
}
