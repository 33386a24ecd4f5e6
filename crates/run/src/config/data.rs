//! `data`: the training and evaluation data.

use plimsoll_data::Classes;

use super::kind::Range;
use super::paths::PathKind;
use super::schema::{boolean, budget, classes, integer, number, optional, path, paths, sources, text, up_to, word};
use super::section::section;
use super::size::Budget;
use super::sources::SourceEntry;
use super::words::{DataFormat, DataMode, Overlong};

section! {
    /// The name that each known column has in the files.
    pub struct ColumnsConfig {
        /// A whole text.
        text: Option<String> = text(), also ["dataset_text_field"];
        /// A question, as a text or a list of {role, content}.
        prompt: Option<String> = text(), also ["field_instruction"];
        /// Its answer, likewise.
        response: Option<String> = text(), also ["completion", "field_output"];
        /// A question to which `input` belongs.
        instruction: Option<String> = text();
        /// What an instruction is about.
        input: Option<String> = text(), also ["field_input"];
        /// A conversation, a list of {role, content}.
        messages: Option<String> = text(), also ["field_messages"];
        /// A conversation, a list of {from, value}.
        conversations: Option<String> = text();
        /// Instructions for the whole conversation.
        system: Option<String> = text(), also ["field_system"];
        /// Earlier turns, a list of [prompt, response].
        history: Option<String> = text();
        /// Tools that may be called.
        tools: Option<String> = text();
        /// The preferred answer.
        chosen: Option<String> = text();
        /// The other answer.
        rejected: Option<String> = text();
        /// The class of a row.
        label: Option<String> = text();
    }
}

impl ColumnsConfig {
    /// Known columns with the names they have, those that were given.
    pub fn given(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let names = [
            ("text", &self.text),
            ("prompt", &self.prompt),
            ("response", &self.response),
            ("instruction", &self.instruction),
            ("input", &self.input),
            ("messages", &self.messages),
            ("conversations", &self.conversations),
            ("system", &self.system),
            ("history", &self.history),
            ("tools", &self.tools),
            ("chosen", &self.chosen),
            ("rejected", &self.rejected),
            ("label", &self.label),
        ];
        names.into_iter().filter_map(|(known, own)| Some((known, own.as_deref()?)))
    }
}

section! {
    pub struct DataConfig {
        /// Training files: a path, a folder, a pattern, a list of them, or a list of {path, weight}. `plan` and
        /// `bench` need none.
        train: Vec<SourceEntry> = sources(),
            also ["path", "data_files", "train_file", "train_data", "train_dataset", "data_path", "dataset_path", "pretraining_dataset"];
        /// Evaluation files.
        eval: Vec<String> = paths(),
            also ["validation", "test", "eval_dataset", "validation_file", "val_data", "test_datasets"];
        /// Fraction of the training rows held out for evaluation, instead of `data.eval`: a random share by `seed`, exact
        /// to one row.
        eval_split: Option<f64> = number(Range::BETWEEN), also ["val_set_size", "val_size", "test_size"];
        /// Columns of a row; `auto` detects them, for each file by itself.
        format: DataFormat = word::<DataFormat>(), default "auto";
        /// Columns that are called otherwise in the files, as in {prompt: question, response: answer}.
        columns: Option<ColumnsConfig> = optional::<ColumnsConfig>(), also ["field", "column_mapping"];
        /// The classes of `task: classification`: how many, or their names.
        classes: Classes = classes(), also ["num_labels"];
        /// The most tokens of a sequence; memory grows with it.
        max_length: u64 = integer(2, 1 << 24), default "1024",
            also ["max_seq_length", "max_seq_len", "sequence_len", "cutoff_len", "model_max_length", "block_size"];
        /// What happens to a sequence longer than `data.max_length`.
        overlong: Overlong = word::<Overlong>(), default "error", also ["excess_length_strategy", "truncation_mode"];
        /// Whether the training rows are shuffled.
        shuffle: bool = boolean(), default "true", also ["shuffle_dataset"];
        /// Folder of the tokenizer, or its hub id; the model's folder if unset.
        tokenizer: Option<String> = path(PathKind::Folder), also ["tokenizer_name", "tokenizer_path"];
        /// Chat template: `auto`, a built-in name, or a .jinja file.
        template: String = path(PathKind::Template), default "auto", also ["chat_template"];
        /// Where tokenised data is stored; `auto` decides by its size, the budget and the disk.
        mode: DataMode = word::<DataMode>(), default "auto", also ["streaming"];
        /// Folder of the token cache; beside the run folder if unset.
        cache: Option<String> = path(PathKind::Plain), also ["dataset_prepared_path", "tokenized_path", "cache_dir"];
        /// The most tokenised data that a stream holds; `auto` is 96MiB.
        buffer: Budget = budget(), default "auto", also ["shuffle_buffer", "buffer_size"];
        /// Tokenising threads; one per core, at most 16, if unset.
        workers: Option<u64> = up_to(1 << 10),
            also ["num_proc", "dataset_num_proc", "preprocessing_num_workers", "dataloader_num_workers"];
        /// Fraction of the rows that may be unusable: 0 fails at the first, 1 skips any number.
        bad_rows: f64 = number(Range::FRACTION), default "0.01";
    }
    one_of &[&["eval", "eval_split"]];
}
