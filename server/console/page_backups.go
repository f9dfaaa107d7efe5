// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func backupsPage() Page {
	return Page{
		Path: "/backups", Title: "Backups", Key: "b", Right: "operate", Template: "backups", Load: loadBackups,
		Actions: []Action{
			{Name: "start", Title: "Back up", Right: "operate", Dialog: "start", Load: loadNode, Do: doBackup},
			{Name: "check", Title: "Check", Right: "operate", Dialog: "check", Load: loadNode, Do: doCheckSet},
		},
	}
}

type backupsView struct {
	Path  string
	Nodes []*nodeSets
}

type nodeSets struct {
	*nodeView

	Sets    []setView
	Failure *failure
	NoPath  bool // the node has no backup location
}

type setView struct {
	*pb.SaveSet

	Check *task
}

func viewSets(sets []*pb.SaveSet, node string, tasks []task) []setView {
	list := make([]setView, 0, len(sets))
	for _, s := range sets {
		one := setView{SaveSet: s}
		for i := range tasks { // the newest task comes first
			if tasks[i].Set == s.GetName() && tasks[i].Node == node {
				one.Check = &tasks[i]
				break
			}
		}
		list = append(list, one)
	}
	return list
}

func loadBackups(ctx context.Context, v *View) (any, error) {
	settings, err := pb.NewMaintenanceServiceClient(v.Own()).GetSettings(ctx, &pb.GetSettingsRequest{})
	if err != nil {
		return nil, err
	}
	nodes, err := v.nodes(ctx)
	if err != nil {
		return nil, err
	}
	d := &backupsView{Path: settings.GetSettings().GetBackupPath()}
	for _, n := range nodes {
		one := &nodeSets{nodeView: n}
		d.Nodes = append(d.Nodes, one)
		cc, err := v.Node(ctx, n.Info.GetNodeId())
		var r *pb.ListBackupsResponse
		if err == nil {
			r, err = pb.NewMaintenanceServiceClient(cc).ListBackups(ctx, &pb.ListBackupsRequest{})
		}
		if err != nil {
			f := describe(err)
			one.Failure, one.NoPath = &f, f.Reason == "NO_BACKUP_PATH"
			continue
		}
		one.Sets = viewSets(r.GetSets(), n.Name(), v.server.tasks.list())
	}
	return d, nil
}

func doBackup(ctx context.Context, v *View) (Done, error) {
	err := v.beginOnNode(ctx, task{
		Title: "Backup", Link: "/backups",
		Partial: "No backup was created, unless the page Backups shows it as complete.",
	}, func(
		ctx context.Context, m pb.MaintenanceServiceClient, report func(*pb.Progress),
	) (string, error) {
		in, err := m.Backup(ctx, &pb.BackupRequest{FullSpeed: v.Get("full_speed") != ""})
		if err != nil {
			return "", err
		}
		set, err := result(in, report, (*pb.BackupResponse).GetSet)
		if err != nil {
			return "", err
		}
		return "Created backup " + set.GetName() + ", " + formatBytes(set.GetBytes()) + ".", nil
	})
	return Done{Message: "Backup started.", Goto: "/store"}, err
}

func doCheckSet(ctx context.Context, v *View) (Done, error) {
	set := v.Get("set")
	title := "Check of backup " + set
	if set == "" {
		title = "Check of the newest backup"
	}
	err := v.beginOnNode(ctx, task{Title: title, Link: "/backups", Set: set}, func(
		ctx context.Context, m pb.MaintenanceServiceClient, report func(*pb.Progress),
	) (string, error) {
		in, err := m.VerifyBackup(ctx, &pb.VerifyBackupRequest{Name: set, FullSpeed: v.Get("full_speed") != ""})
		if err != nil {
			return "", err
		}
		r, err := result(in, report, (*pb.VerifyBackupResponse).GetResult)
		switch {
		case err != nil:
			return "", err
		case !r.GetRestorable():
			return "", &unsuccessful{"The backup cannot be restored", r.GetProblem()}
		}
		return checkedText(r), nil
	})
	return Done{Message: "Check started.", Goto: "/store"}, err
}

func checkedText(r *pb.VerifyBackupResult) string {
	text := fmt.Sprintf("Restorable: %s messages; a restore needs %s.", formatNumber(r.GetMessages()),
		formatBytes(r.GetNeededBytes()))
	switch {
	case r.GetArchiveProblem() != "":
		text += " With the log archive, restorable up to LSN " + formatNumber(r.GetReach().GetLsn()) +
			" only: " + r.GetArchiveProblem() + "."
	case r.GetArchive() != "":
		text += " With the log archive, restorable up to LSN " + formatNumber(r.GetReach().GetLsn()) +
			" of " + clockTime(r.GetReachTime()) + "."
	}
	return text
}
