//! A notice in the words it travels in: the same event as followers hear it, with the occasion beside it.

use cis_store::Notice;

/// What somebody is told.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    /// The same whenever it is told again: who hears it twice knows it by this.
    pub(crate) id: String,
    /// JSON.
    pub(crate) body: String,
    /// The most useful of it by name, for commands.
    pub(crate) variables: Vec<(&'static str, String)>,
}

impl Message {
    pub(crate) fn of(notice: &Notice) -> Self {
        let event = &notice.event;
        // With the time, so that events of several nodes do not meet in one receiver under one id.
        let id = format!("evt_{}_{}", event.at.0, event.position);
        let mut body = event.cloud_event();
        body["id"] = id.clone().into();
        body["occasion"] = notice.occasion.word().into();
        let mut variables = vec![
            ("CIS_EVENT", notice.occasion.word().to_owned()),
            ("CIS_EVENT_ID", id.clone()),
            ("CIS_SUBJECT", event.subject.to_string()),
            ("CIS_STATUS", event.status.clone()),
            ("CIS_DAG", event.dag_id.to_string()),
            ("CIS_SCOPE", event.scope.to_string()),
        ];
        if let Some(number) = event.run_number {
            variables.push(("CIS_RUN", format!("{}#{number}", event.dag_id)));
        }
        if let Some(task) = &event.task_id {
            variables.push(("CIS_TASK", task.clone()));
        }
        if let Some(review) = event.data["review_id"].as_str() {
            variables.push(("CIS_REVIEW", review.to_owned()));
        }
        Self { id, body: body.to_string(), variables }
    }
}
