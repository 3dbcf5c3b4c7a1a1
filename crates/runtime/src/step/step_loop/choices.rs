//! Choices of one prompt: one of them computes it, the others begin as forks of its sequence.

use ruvllm_scheduler::RequestId;

use super::StepLoop;
use crate::request::FinishReason;
use crate::step::executor::{Executor, SequenceId, SequenceReport};
use crate::step::job::Job;
use crate::step::request::Request;

impl<'c, X: Executor> StepLoop<'c, X> {
    /// Takes a request into the queue, or reports why not.
    pub(crate) fn submit(&mut self, job: Job) {
        self.submit_choices([job]);
    }

    /// Takes requests of one prompt: the first computes it, the others go on from there.
    pub(crate) fn submit_choices(&mut self, jobs: impl IntoIterator<Item = Job>) {
        let mut ids = Vec::new();
        self.is_waiting = false;
        for job in jobs {
            let (id, sequence) = (RequestId(self.next), SequenceId(self.next));
            self.next += 1;
            let request = Request::new(self.codec, sequence, job);
            if request.max_new_tokens() == 0 && !request.scores_prompt() {
                request.finish(FinishReason::Length, &SequenceReport::default());
            } else {
                self.requests.insert(id, Box::new(request));
                ids.push(id);
            }
        }
        self.lead(&ids);
    }

    /// The first of these requests that the queue takes computes the prompt, the others follow it.
    pub(super) fn lead(&mut self, mut ids: &[RequestId]) {
        while let Some((&id, followers)) = ids.split_first() {
            if self.enqueue(id) {
                if let Some(request) = self.requests.get_mut(&id) {
                    request.followers.extend_from_slice(followers);
                }
                return;
            }
            ids = followers;
        }
    }

    /// Begins the other choices of a prompt that has been computed, as forks of its sequence.
    pub(super) fn release_followers(&mut self, id: RequestId) {
        let Some(request) = self.requests.get_mut(&id) else { return };
        let (source, followers) = (request.sequence, std::mem::take(&mut request.followers));
        if followers.is_empty() {
            return;
        }
        let (adapters, prompt_logprobs) = (request.adapters.clone(), request.share_prompt_logprobs());
        for follower in followers {
            let Some(request) = self.requests.get_mut(&follower) else { continue };
            request.follow(&adapters, &prompt_logprobs);
            if request.max_new_tokens() == 0 {
                self.finish(follower, FinishReason::Length);
                continue;
            }
            request.is_forked = self.executor.fork(source, request.sequence);
            if self.enqueue(follower) {
                self.forks.push_back(follower);
            }
        }
    }

    /// Takes the memory of a fork that has not started; false if there is none.
    pub(super) fn park_fork(&mut self) -> bool {
        while let Some(id) = self.forks.pop_front() {
            if let Some(request) = self.requests.get_mut(&id).filter(|request| request.is_forked) {
                request.is_forked = false;
                self.executor.park(request.sequence);
                request.release_adapters();
                return true;
            }
        }
        false
    }
}
