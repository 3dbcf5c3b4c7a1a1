//! Lessons of the caller's bank in the prompt of a request.

use std::sync::Arc;

use ruvllm::crates::sona::bank::{Arm, PromptTemplate, Retrieval, RetrievalLimits};
use ruvllm::{Message, Prompt};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::now;
use crate::api_error::ApiError;
use crate::generation::Ticket;
use crate::learning::recall::{self, MOST_ITEMS};
use crate::models::LoadedModel;

/// Characters of a prompt for each item: one with the longest texts fits.
const CHARACTERS: usize = 2000;

/// Field of a request that asks for lessons.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct MemoryField {
    /// Largest number of lessons of the caller's bank in the prompt, 0 to 16; absent: none.
    memory: Option<usize>,
}

/// Lessons that matched the task of a request.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub(crate) struct MemoryUse {
    /// Id of the request for `/v1/sona/bank/outcome`.
    request_id: String,
    /// `memory`: the prompt has the items; `control`: they are withheld from this request, so that
    /// their gain can be measured.
    arm: &'static str,
    /// Ids of the items, best first.
    items: Vec<u64>,
}

/// Lessons for a prompt, and their report in the reply.
struct Recalled {
    text: Option<String>,
    report: MemoryUse,
}

/// Name of an arm in replies.
pub(crate) fn arm_name(arm: Arm) -> &'static str {
    match arm {
        Arm::Memory => "memory",
        Arm::Control => "control",
    }
}

impl MemoryField {
    /// Adds lessons to the end of the system message of a conversation. They are found by its first
    /// message of the user, the task, so that they and the cached prefix stay the same while the
    /// conversation goes on.
    ///
    /// # Errors
    /// As [`recall`](Self::recall).
    pub(crate) async fn add_to_chat(
        &self,
        ticket: &Ticket,
        model: &Arc<LoadedModel>,
        prompt: &mut Prompt,
    ) -> Result<Option<MemoryUse>, ApiError> {
        let Prompt::Chat { messages, .. } = prompt else { return Ok(None) };
        let task = messages.iter().find(|message| message.role == "user").and_then(text_of);
        let recalled = self.recall(ticket, model, task).await?;
        Ok(recalled.map(|recalled| {
            if let Some(text) = recalled.text {
                add_to_system(messages, text);
            }
            recalled.report
        }))
    }

    /// Puts lessons before a prompt of text, which they are found by.
    ///
    /// # Errors
    /// 400 for several prompts and for token ids; as [`recall`](Self::recall).
    pub(crate) async fn add_to_prompts(
        &self,
        ticket: &Ticket,
        model: &Arc<LoadedModel>,
        prompts: &mut [Prompt],
    ) -> Result<Option<MemoryUse>, ApiError> {
        if self.memory.unwrap_or(0) == 0 {
            return Ok(None);
        }
        let [Prompt::Text(prompt)] = prompts else {
            let message = "lessons are found by a text: send one prompt as text, or leave out memory";
            return Err(ApiError::invalid_param("memory", message));
        };
        let recalled = self.recall(ticket, model, Some(prompt.as_str())).await?;
        Ok(recalled.map(|recalled| {
            if let Some(text) = recalled.text {
                *prompt = format!("{text}\n\n{prompt}");
            }
            recalled.report
        }))
    }

    /// Lessons for a task; `None` for a request that asks for none.
    ///
    /// # Errors
    /// 400 for a number out of range and without a task, 403 for a tenant without memory, 503 for a
    /// bank that cannot be used.
    async fn recall(
        &self,
        ticket: &Ticket,
        model: &Arc<LoadedModel>,
        task: Option<&str>,
    ) -> Result<Option<Recalled>, ApiError> {
        let max_items = match self.memory {
            None | Some(0) => return Ok(None),
            Some(items @ 1..=MOST_ITEMS) => items,
            Some(items) => {
                let message = format!("memory is {items}, expected at most {MOST_ITEMS} lessons");
                return Err(ApiError::invalid_param("memory", message));
            }
        };
        let caller = &ticket.caller;
        let min_similarity = recall::similarity_of(caller).map_err(|error| error.with_param("memory"))?;
        let Some(task) = task.filter(|task| !task.trim().is_empty()) else {
            let message = "lessons are found by the first message of the user, which has no text";
            return Err(ApiError::invalid_param("memory", message));
        };
        model.engine().map_err(|error| error.with_param("memory"))?;
        let [query] = recall::embed(model, caller, [task]).await?;
        let id = ticket.request_id.as_str().to_owned();
        let found = recall::with_bank(model, caller, move |bank, tenant| {
            let control_share = bank.config().control_share;
            let limits = RetrievalLimits { max_items, min_similarity, control_share };
            bank.retrieve_within(tenant, &id, &query, limits, now()).map_err(recall::refused)
        });
        let Retrieval { receipt, items } = found.await?;
        let template = PromptTemplate { max_chars: CHARACTERS * max_items, ..PromptTemplate::default() };
        Ok(Some(Recalled {
            text: template.render(items.iter().map(|found| &found.item)),
            report: MemoryUse {
                request_id: receipt.request,
                arm: arm_name(receipt.arm),
                items: receipt.items,
            },
        }))
    }
}

/// Text of a message of a request.
pub(crate) fn text_of(message: &Message) -> Option<&str> {
    message.content.as_ref()?.as_str()
}

/// Adds text to the end of the system message, which is begun if there is none.
fn add_to_system(messages: &mut Vec<Message>, text: String) {
    match messages.first_mut().filter(|first| first.role == "system") {
        Some(system) => {
            let own = text_of(system).unwrap_or_default();
            let text = if own.is_empty() { text } else { format!("{own}\n\n{text}") };
            system.content = Some(text.into());
        }
        None => messages.insert(0, Message::system(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lessons_end_the_system_message_or_begin_one() {
        let mut messages = vec![Message::user("a")];
        add_to_system(&mut messages, "Notes".to_owned());
        assert_eq!(messages, [Message::system("Notes"), Message::user("a")]);
        let mut messages = vec![Message::system("Be brief."), Message::user("a")];
        add_to_system(&mut messages, "Notes".to_owned());
        assert_eq!(messages, [Message::system("Be brief.\n\nNotes"), Message::user("a")]);
    }
}
