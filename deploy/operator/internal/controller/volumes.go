// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/lockstep-mq/lockstep/deploy/operator/api/v1alpha1"
	"github.com/lockstep-mq/lockstep/deploy/operator/internal/objects"
)

// resize enlarges volumes that are smaller than the spec, and sets the condition VolumesResized. The API server rejects
// the change if the storage class does not permit it.
func (r *PairReconciler) resize(ctx context.Context, pair *v1alpha1.LockstepPair, o *observed) {
	spec := o.p.Spec()
	sizes := map[string]resource.Quantity{}
	for i := range objects.Nodes {
		sizes[o.p.ClaimName(i)] = *spec.Persistence.Size
	}
	if o.p.HasWitness() {
		sizes["data-"+o.p.WitnessName()+"-0"] = *spec.Witness.Persistence.Size
	}
	reason, message := "Resized", "all volumes have the requested size"
	for name, size := range sizes {
		if is, text, err := r.resizeClaim(ctx, pair, name, size); err != nil {
			reason, message = "Refused", err.Error()
		} else if is != "" && reason == "Resized" {
			reason, message = is, text
		}
	}
	r.condition(pair, v1alpha1.ConditionVolumesResized, reason == "Resized" || reason == "Larger", reason, message)
}

// resizeClaim enlarges a volume that is smaller than size. The reason is empty if the volume has the requested size.
func (r *PairReconciler) resizeClaim(
	ctx context.Context, pair *v1alpha1.LockstepPair, name string, size resource.Quantity,
) (reason, message string, _ error) {
	claim, err := read[corev1.PersistentVolumeClaim](ctx, r, pair, name)
	if err != nil || claim == nil {
		return "Creating", fmt.Sprintf("volume %s is being created", name), err
	}
	requested := claim.Spec.Resources.Requests[corev1.ResourceStorage]
	if requested.Cmp(size) < 0 {
		if claim.Status.Phase != corev1.ClaimBound {
			return "Creating", fmt.Sprintf("volume %s is not bound", name), nil
		}
		base := claim.DeepCopy()
		claim.Spec.Resources.Requests[corev1.ResourceStorage] = size
		if err := r.Patch(ctx, claim, client.MergeFrom(base)); err != nil {
			return "", "", fmt.Errorf("enlarge volume %s: %w", name, err)
		}
		r.Events.Eventf(pair, claim, corev1.EventTypeNormal, "Resizing", "Resize", "volume %s: from %s to %s", name,
			requested.String(), size.String())
		return "Resizing", fmt.Sprintf("volume %s is being enlarged to %s", name, size.String()), nil
	}
	if requested.Cmp(size) > 0 {
		return "Larger", fmt.Sprintf("volume %s has %s; volumes cannot shrink", name, requested.String()), nil
	}
	capacity, known := claim.Status.Capacity[corev1.ResourceStorage]
	if known && capacity.Cmp(size) < 0 {
		return "Resizing", fmt.Sprintf("volume %s has %s of %s", name, capacity.String(), size.String()), nil
	}
	return "", "", nil
}
