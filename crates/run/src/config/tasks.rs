//! What single tasks take: a section for each that has settings.

use super::kind::Range;
use super::schema::{boolean, number, up_to, word};
use super::section::section;
use super::words::RankingLoss;

section! {
    /// `task: reward`.
    pub struct RewardConfig {
        /// Weight of the squared sum of a pair's scores in the loss, which holds scores around zero.
        centring: f64 = number(Range::FROM_ZERO), default "0.0", also ["center_rewards_coefficient", "centering"];
        /// Whether rows have a column `margin`: by how much the chosen answer's score shall be higher.
        margin: bool = boolean(), default "false";
    }
}

section! {
    /// `task: ranking`. Rows are conversations with `auxiliary_labels`: a number for each turn of the assistant, or a list
    /// of {text, relevance} in the order of the conversation. Candidates are scored at their last token.
    pub struct RankingConfig {
        /// The loss over the order of a conversation's candidates.
        loss: RankingLoss = word::<RankingLoss>(), default "listmle";
        /// Weight of that loss.
        weight: f64 = number(Range::FROM_ZERO), default "1.0";
        /// Weight of the loss over the assistant's answers.
        lm_weight: f64 = number(Range::FROM_ZERO), default "0.5";
        /// Ranks that `ndcg` looks at; all if unset.
        top: Option<u64> = up_to(1 << 20), also ["k"];
    }
}

section! {
    /// `task: dpo`.
    pub struct DpoConfig {
        /// What differences of log-probabilities are multiplied by: the larger, the closer to the reference.
        beta: f64 = number(Range::ABOVE_ZERO), default "0.1", also ["pref_beta"];
        /// The share of pairs that are taken to be the wrong way round.
        label_smoothing: f64 = number(Range::BELOW_HALF), default "0.0";
    }
}

section! {
    /// `task: orpo`.
    pub struct OrpoConfig {
        /// Weight of the odds ratio beside the chosen answer's loss.
        lambda: f64 = number(Range::ABOVE_ZERO), default "0.1", also ["beta"];
    }
}
