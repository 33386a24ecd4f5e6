//! The program as its users and their scripts meet it: exit codes, messages, files.

mod bad_data;
mod bad_model;
mod bad_run;
mod bench;
mod dashboard;
mod data;
mod disk;
mod examples;
mod faults;
mod first_hour;
mod generate;
mod observing;
mod plan;
mod resume;
mod reward;
mod run_folder;
mod signals;
mod support;
mod tasks;
mod templates;
mod terminal;
mod tokenizer;
mod train;
mod usage;
mod warnings;
