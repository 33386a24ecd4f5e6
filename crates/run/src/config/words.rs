//! The keys that take one of a few words.

/// An enum of words.
pub trait Words {
    const WORDS: &'static [&'static str];
}

/// An enum whose variants are words of the configuration; the schema takes its list from here.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($variant),+ }

        impl $name {
            pub fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }

            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some(Self::$variant),)+ _ => None }
            }
        }

        impl Words for $name {
            const WORDS: &'static [&'static str] = &[$($word),+];
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.word())
            }
        }

        impl $crate::config::kind::FromValue for $name {
            fn from_value(value: $crate::config::kind::Value) -> Option<Self> {
                match value {
                    $crate::config::kind::Value::Text(word) => Self::from_word(&word),
                    _ => None,
                }
            }
        }
    };
}

words!(
    /// Where the first weights come from. `Auto`: random for a model given by shape, else its files.
    Init { Auto = "auto", Pretrained = "pretrained", Random = "random" }
);

words!(
    /// The arithmetic. `Auto`: fp32 on the CPU, bf16 on GPUs.
    Precision { Auto = "auto", Bf16 = "bf16", Fp16 = "fp16", Fp32 = "fp32" }
);

words!(
    /// What is done about an update that would do harm.
    GuardAction { Stop = "stop", Skip = "skip" }
);

words!(
    /// How frozen weights are stored. `Auto`: in the precision of the run where that fits, else in fewer bits.
    BaseFormat {
        Auto = "auto",
        Fp32 = "fp32",
        Bf16 = "bf16",
        Fp16 = "fp16",
        Fp8 = "fp8",
        Int8 = "int8",
        Nf4 = "nf4",
    }
);

words!(
    /// The loss over the order of candidates.
    RankingLoss { ListMle = "listmle", ListNet = "listnet", Pairwise = "pairwise" }
);

words!(
    /// How the optimizer's state is stored.
    StateStorage { Fp32 = "fp32", Bf16 = "bf16", Int8 = "int8" }
);

words!(
    /// What a row of the dataset looks like. `Auto`: detected from its columns.
    DataFormat {
        Auto = "auto",
        Text = "text",
        PromptResponse = "prompt-response",
        PromptMessages = "prompt-messages",
        Messages = "messages",
        Conversations = "conversations",
        Pairs = "pairs",
    }
);

words!(
    /// Where tokenised data is stored. `Auto`: decided by its size, the budget and the disk.
    DataMode { Auto = "auto", Memory = "memory", Cached = "cached", Streaming = "streaming" }
);

words!(
    /// What happens to a sequence longer than `data.max_length`.
    Overlong { Error = "error", Truncate = "truncate", Skip = "skip" }
);

words!(
    /// When checkpoints are written. `Auto`: beside training where the run saves on the way and there is room.
    SavePlan { Auto = "auto", Beside = "beside", Between = "between" }
);

words!(
    /// In which precision the forward pass keeps what only adapters' gradients need of it.
    KeepPrecision { Exact = "exact", Fp8 = "fp8" }
);

words!(Goal { Fastest = "fastest", Lowest = "lowest" });

words!(ScheduleName {
    Constant = "constant",
    Linear = "linear",
    Cosine = "cosine",
    Polynomial = "polynomial",
    InverseSqrt = "inverse-sqrt",
    OneCycle = "onecycle",
    ConstantLinear = "constant-linear",
});

words!(MuonScale { Original = "original", MatchAdamW = "match-adamw" });

words!(Mode { Compiled = "compiled", Eager = "eager" });
