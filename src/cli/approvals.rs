//! `actiond approvals`: the calls that wait for a person, and what the person says.

use std::collections::HashMap;

use anyhow::{Context as _, anyhow};
use clap::Subcommand;
use serde_json::{Value, json};

use super::{
    ConfigFile, Failure, calls,
    show::{age, escape, json_line, print, table, time},
};
use crate::{
    app, approval,
    redact::{self, Path},
    shown::pretty,
    store::{Approval, ApprovalFilter, Decide, Decided, Ledger},
};

#[derive(Subcommand)]
pub(super) enum ApprovalsCommand {
    /// List the calls that wait, the oldest first
    #[command(after_help = "Example:  actiond approvals list")]
    List {
        /// The decided ones too, the newest first
        #[arg(long)]
        all: bool,
        /// Only calls of this function
        #[arg(long, value_name = "NAME")]
        function: Option<String>,
        /// Only what comes behind this one
        #[arg(long, value_name = "CALL")]
        after: Option<String>,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Show one call that waits or waited
    #[command(after_help = "Example:  actiond approvals show openai/sess_1/turn_1/call_1 --show-arguments")]
    Show {
        /// PLATFORM/SESSION/TURN/CALL_ID, or a call id that only one call has
        call: String,
        /// Show the arguments too, as long as nobody has decided
        #[arg(long)]
        show_arguments: bool,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Let the handler start
    #[command(after_help = "Example:  actiond approvals approve call_1 --by alice")]
    Approve(DecisionArgs),
    /// Answer the call with an error; the agent reads the reason
    #[command(
        after_help = "Example:  actiond approvals deny call_1 --by alice --reason 'more than the order was worth'"
    )]
    Deny(DecisionArgs),
}

#[derive(clap::Args)]
pub(super) struct DecisionArgs {
    /// PLATFORM/SESSION/TURN/CALL_ID, or a call id that only one call has
    #[arg(required = true)]
    calls: Vec<String>,
    /// Why; kept, and read by the agent if you deny
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Who decides; kept. You by default
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
    /// One JSON object a line
    #[arg(long)]
    json: bool,
}

pub(super) async fn approvals(file: &ConfigFile, command: ApprovalsCommand) -> Result<(), Failure> {
    let config = file.load()?;
    let ledger = Ledger::new(app::open_existing(&config.store).await?.store, config.store.timeout);
    let redact = config.functions.into_iter().map(|function| (function.name, function.redact)).collect();
    let operator = Operator { ledger, redact };
    match command {
        ApprovalsCommand::List { all, function, after, json } => {
            operator.list(ApprovalFilter { all, function }, after, json).await
        }
        ApprovalsCommand::Show { call, show_arguments, json } => operator.show(&call, show_arguments, json).await,
        ApprovalsCommand::Approve(args) => operator.decide(args, true).await,
        ApprovalsCommand::Deny(args) => operator.decide(args, false).await,
    }
}

/// Rows read at once.
const PAGE: usize = 200;

struct Operator {
    ledger: Ledger,
    /// What of each function's arguments is not shown.
    redact: HashMap<String, Vec<Path>>,
}

impl Operator {
    async fn list(&self, filter: ApprovalFilter, after: Option<String>, json: bool) -> Result<(), Failure> {
        let mut last = match after {
            Some(name) => Some(self.find(&name).await?.place()),
            None => None,
        };
        let mut lines = vec![["CALL", "FUNCTION", "ASKED", "STATE", "BY", "REASON"].map(str::to_owned).to_vec()];
        loop {
            let page = self.ledger.approvals().approvals(&filter, last.as_ref(), PAGE).await.context(calls::READ)?;
            if json {
                print(&page.iter().map(|approval| json_line(&to_json(approval))).collect::<String>())?;
            }
            lines.extend(page.iter().map(line));
            match page.into_iter().last() {
                Some(end) => last = Some(end.place()),
                None => break,
            }
        }
        match lines.len() {
            1 if !json => eprintln!("nothing waits for an approval"),
            _ if !json => print(&table(&lines))?,
            _ => {}
        }
        Ok(())
    }

    async fn show(&self, name: &str, with_arguments: bool, json: bool) -> Result<(), Failure> {
        let approval = self.find(name).await?;
        let hidden = self.redact.get(&approval.function).map_or(&[][..], Vec::as_slice);
        let arguments = approval.arguments.as_deref().filter(|_| with_arguments);
        let arguments = arguments.map(|arguments| redact::show(hidden, arguments.as_bytes()));
        let mut fields = to_json(&approval);
        if json {
            if let (Some(arguments), Some(fields)) = (&arguments, fields.as_object_mut()) {
                fields.insert("arguments".to_owned(), serde_json::from_str(arguments).unwrap_or_default());
            }
            return print(&json_line(&fields));
        }
        let fields = fields.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        let fields = fields.map(|(name, value)| vec![name.clone(), escape(value.as_str().unwrap_or_default())]);
        print(&table(&fields.collect::<Vec<_>>()))?;
        match arguments {
            Some(arguments) => print(&format!("arguments\n{}\n", pretty(&arguments))),
            None => Ok(()),
        }
    }

    /// Each by itself: one that cannot be decided does not keep the others.
    async fn decide(&self, args: DecisionArgs, approve: bool) -> Result<(), Failure> {
        let mut failed = false;
        for name in &args.calls {
            if let Err(error) = self.decide_one(name, &args, approve).await {
                failed = true;
                eprintln!("error: {error:#}");
            }
        }
        if failed { Err(Failure::Said) } else { Ok(()) }
    }

    async fn decide_one(&self, name: &str, args: &DecisionArgs, approve: bool) -> anyhow::Result<()> {
        let approval = self.find(name).await?;
        let decision = Decide {
            key: approval.key,
            asked_at: Some(approval.asked_at),
            approve,
            by: args.by.clone().unwrap_or_else(calls::person),
            reason: args.reason.clone(),
        };
        match approval::decide(self.ledger.approvals(), decision).await.context("cannot decide")? {
            Decided::Done(approval) => {
                let next = if approve { "approved: its handler starts" } else { "denied: the agent is told" };
                let line = match args.json {
                    true => json_line(&to_json(&approval)),
                    false => format!("{}  {next}\n", escape(&approval.key.to_string())),
                };
                // What is done is done, whether or not somebody reads of it.
                let _ = print(&line);
                Ok(())
            }
            Decided::Already(approval) => Err(anyhow!("{}", escape(&approval::told(&approval)))),
            Decided::Unknown => Err(anyhow!("nobody was asked about {}", escape(name))),
        }
    }

    async fn find(&self, name: &str) -> anyhow::Result<Approval> {
        let row = calls::find(self.ledger.store(), name).await?;
        let found = self.ledger.approvals().approval(&row.key).await.context(calls::READ)?;
        found.ok_or_else(|| anyhow!("nobody was asked about {}", escape(&row.key.to_string())))
    }
}

fn state(approval: &Approval) -> &'static str {
    approval.decision.map_or("pending", |decision| decision.as_str())
}

fn line(approval: &Approval) -> Vec<String> {
    let text = |text: &Option<String>| escape(text.as_deref().unwrap_or_default());
    vec![
        escape(&approval.key.to_string()),
        escape(&approval.function),
        age(approval.asked_at),
        state(approval).to_owned(),
        text(&approval.decided_by),
        text(&approval.reason),
    ]
}

fn to_json(approval: &Approval) -> Value {
    let key = &approval.key;
    json!({
        "call": key.to_string(),
        "platform": &*key.session.platform,
        "session": &*key.session.session,
        "turn": &*key.turn,
        "call_id": &*key.call_id,
        "function": approval.function,
        "state": state(approval),
        "asked_at": time(approval.asked_at),
        "expires_at": time(approval.expires_at),
        "decided_by": approval.decided_by,
        "decided_at": approval.decided_at.map(time),
        "reason": approval.reason,
    })
}
