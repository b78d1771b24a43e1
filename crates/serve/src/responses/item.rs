//! Output items.

use serde_json::{Value as Json, json};

use super::tools::{CallForm, call_item};
use crate::ids::unique_id;

/// An output item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) id: String,
    /// Thoughts, text or arguments.
    pub(super) text: String,
    pub(super) kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Thoughts. If a summary is requested, the thoughts take its place, because some clients
    /// display only the summary.
    Reasoning {
        summarizes: bool,
    },
    Message,
    Call {
        call_id: String,
        name: String,
        form: CallForm,
    },
}

impl Item {
    /// The only part of a message or summary.
    pub(super) fn part(&self) -> Json {
        if matches!(self.kind, Kind::Reasoning { .. }) {
            return json!({ "type": "summary_text", "text": self.text });
        }
        json!({ "type": "output_text", "text": self.text, "annotations": [], "logprobs": [] })
    }

    pub(super) fn to_json(&self, status: &str) -> Json {
        let is_whole = status != "in_progress";
        match &self.kind {
            Kind::Reasoning { summarizes } => {
                let content = if is_whole { json!([{ "type": "reasoning_text", "text": self.text }]) } else { json!([]) };
                let summary = if is_whole && *summarizes { json!([self.part()]) } else { json!([]) };
                json!({ "id": self.id, "type": "reasoning", "summary": summary, "content": content, "status": status })
            }
            Kind::Message => {
                let content = if is_whole { json!([self.part()]) } else { json!([]) };
                json!({ "id": self.id, "type": "message", "role": "assistant", "content": content, "status": status })
            }
            Kind::Call { call_id, name, form } => {
                // Arguments that stop early are shown as they are.
                call_item(form, &self.id, call_id, name, if is_whole { &self.text } else { "" }, status)
            }
        }
    }

    /// Prefix of the item's ID.
    pub(super) fn prefix(kind: &Kind) -> &'static str {
        match kind {
            Kind::Reasoning { .. } => "rs_",
            Kind::Message => "msg_",
            Kind::Call { form: CallForm::Function | CallForm::Grouped(_), .. } => "fc_",
            Kind::Call { form: CallForm::Custom, .. } => "ctc_",
            Kind::Call { form: CallForm::LocalShell, .. } => "lsh_",
            Kind::Call { form: CallForm::Shell, .. } => "sh_",
            Kind::Call { form: CallForm::Patch, .. } => "apc_",
        }
    }

    /// Creates an item without text.
    pub(super) fn new(kind: Kind) -> Item {
        Item { id: unique_id(Item::prefix(&kind)), text: String::new(), kind }
    }
}
