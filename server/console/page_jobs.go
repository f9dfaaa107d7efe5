// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func jobsPage() Page {
	return Page{
		Path: "/jobs", Title: "Jobs", Key: "j", Right: "operate", Template: "jobs", Live: true, Load: loadJobs,
		Actions: []Action{
			{Name: "put", Title: "Save job", Right: "operate", Dialog: "put", Load: loadJob, Do: doPutJob},
			{
				Name: "delete", Title: "Delete job", Right: "operate", Dialog: "delete", Danger: true, Load: loadJob,
				Do: doDeleteJob,
			},
			{Name: "run", Title: "Run job now", Right: "operate", Dialog: "run", Load: loadJob, Do: doRunJob},
		},
	}
}

type jobView struct {
	*pb.Job

	Last  *pb.JobRun
	State label
}

func outcome(r *pb.JobRun) label {
	switch r.GetOutcome() {
	case "ok":
		return label{"ok", "good"}
	case "failed":
		return label{"failed", "bad"}
	case "running":
		return label{"running", "info"}
	case "":
		return label{"never run", ""}
	}
	return label{r.GetOutcome(), "warn"}
}

func viewJob(j *pb.Job) *jobView {
	d := &jobView{Job: j}
	if h := j.GetHistory(); len(h) > 0 {
		d.Last = h[0]
	}
	d.State = outcome(d.Last)
	return d
}

func loadJobs(ctx context.Context, v *View) (any, error) {
	r, err := pb.NewMaintenanceServiceClient(v.Own()).ListJobs(ctx, &pb.ListJobsRequest{})
	if err != nil {
		return nil, err
	}
	list := make([]*jobView, 0, len(r.GetJobs()))
	for _, j := range r.GetJobs() {
		list = append(list, viewJob(j))
	}
	return list, nil
}

// loadJob returns the job that the request names, or a new job if it names none.
func loadJob(ctx context.Context, v *View) (any, error) {
	r, err := pb.NewMaintenanceServiceClient(v.Own()).ListJobs(ctx, &pb.ListJobsRequest{})
	if err != nil {
		return nil, err
	}
	name := v.Query.Get("name")
	if name == "" {
		return viewJob(&pb.Job{Kind: "backup", Schedule: "@daily"}), nil
	}
	for _, j := range r.GetJobs() {
		if j.GetName() == name {
			return viewJob(j), nil
		}
	}
	return nil, invalid("Job not found.")
}

func doPutJob(ctx context.Context, v *View) (Done, error) {
	f := v.Form
	_, err := pb.NewMaintenanceServiceClient(v.Own()).PutJob(ctx, &pb.PutJobRequest{Job: &pb.Job{
		Name: f.Get("name"), Schedule: f.Get("schedule"), Kind: f.Get("kind"), On: f.Get("on"), Paused: f.Get("paused") != "",
	}})
	return Done{Message: "Job " + f.Get("name") + " saved."}, err
}

func doDeleteJob(ctx context.Context, v *View) (Done, error) {
	_, err := pb.NewMaintenanceServiceClient(v.Own()).DeleteJob(ctx, &pb.DeleteJobRequest{Name: v.Get("name")})
	return Done{Message: "Job " + v.Get("name") + " deleted."}, err
}

// runResult returns the result of a run, or an error if the run failed or was skipped.
func runResult(r *pb.JobRun) (string, error) {
	switch o := r.GetOutcome(); o {
	case "failed":
		return "", &unsuccessful{"The run failed", r.GetDetail()}
	case "skipped":
		return "", &unsuccessful{"The run was skipped", r.GetDetail()}
	default:
		return o + ": " + r.GetDetail(), nil
	}
}

func doRunJob(ctx context.Context, v *View) (Done, error) {
	if _, err := loadJob(ctx, v); err != nil {
		return Done{}, err
	}
	name := v.Query.Get("name")
	err := v.begin(ctx, task{
		Title: "Job " + name, Node: "of the job", Link: "/jobs",
		Partial: "Some steps may be done: see the history of the job.",
	}, func(
		ctx context.Context, v *View, _ func(*pb.Progress),
	) (string, error) {
		r, err := pb.NewMaintenanceServiceClient(v.Own()).RunJob(ctx, &pb.RunJobRequest{Name: name})
		if err != nil {
			return "", err
		}
		return runResult(r.GetRun())
	})
	return Done{Message: "Job " + name + " started."}, err
}
