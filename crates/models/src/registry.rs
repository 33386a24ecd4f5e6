//! Every parameter of a model, registered under its Hugging Face names; `Forward` wires them.

use std::collections::HashMap;

use plimsoll_graph::ops::Columns;
use plimsoll_graph::{BatchShape, Extent, Role, Shape, Slot, SlotId, SlotTable, Storage, WeightFormat};

use crate::architecture::{Norm, Projection, Stack};
use crate::parameters::matches;
use crate::{Architecture, Head, HfTensor, Init, Lora, ModelError, Parameter, ParameterKind, Recipe};

/// The layers of a projection that have an adapter, each with its output columns.
pub(crate) fn adapted(projection: &Projection, lora: &Lora) -> Vec<(&'static str, Columns)> {
    let layers = projection.layers.iter().scan(0, |end, &(name, len)| {
        let start = *end;
        *end += len;
        Some((name, Columns { start, len }))
    });
    layers.filter(|(name, _)| lora.adapts(name)).collect()
}

/// What parameters of a block are called: here, and in Hugging Face's files.
#[derive(Clone)]
pub(crate) struct BlockNames {
    pub(crate) layer: u32,
    /// Stands before the names of its parameters and values.
    pub(crate) own: String,
    pub(crate) hf: String,
}

impl BlockNames {
    pub(crate) fn new(stack: &Stack, index: usize, layer: u32) -> Self {
        Self { layer, own: format!("{}layers.{index}", stack.prefix), hf: format!("{}.{index}", stack.module) }
    }
}

pub(crate) struct Registry<'a> {
    pub(crate) model: &'a Architecture,
    pub(crate) head: &'a dyn Head,
    pub(crate) recipe: &'a Recipe,
    pub(crate) batch: BatchShape,
    parameters: Vec<Parameter>,
    by_name: HashMap<String, usize>,
}

/// A parameter about to be registered.
struct New {
    name: String,
    layer: Option<u32>,
    tensors: Vec<HfTensor>,
    kind: ParameterKind,
    trainable: bool,
    /// In few bits where nothing trains it.
    format: Option<WeightFormat>,
}

impl<'a> Registry<'a> {
    /// Registers a slot for every parameter.
    pub(crate) fn new(
        model: &'a Architecture,
        head: &'a dyn Head,
        recipe: &'a Recipe,
        batch: BatchShape,
        slots: &mut SlotTable,
    ) -> Result<Self, ModelError> {
        let mut registry = Self { model, head, recipe, batch, parameters: Vec::new(), by_name: HashMap::new() };
        registry.register(slots)?;
        registry.check_patterns()?;
        Ok(registry)
    }

    pub(crate) fn into_parameters(self) -> Vec<Parameter> {
        self.parameters
    }

    pub(crate) fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn register(&mut self, slots: &mut SlotTable) -> Result<(), ModelError> {
        let (model, head) = (self.model, self.head);
        let (d, vocab) = (model.hidden_size, model.vocab_size);
        let normal = Init::Normal { std: model.initializer_range };
        self.base(slots, "embed", None, &[(model.embedding.name, vocab, normal)], Some(d), None)?;
        for stack in &model.stacks {
            if let Some(norm) = &stack.input_norm {
                self.stack_norm(slots, stack, "input_norm", norm)?;
            }
            if let Some(bias) = &stack.position_bias {
                let table = [(bias.name, bias.buckets, Init::Normal { std: bias.std })];
                self.base(slots, &format!("{}position_bias", stack.prefix), None, &table, Some(bias.heads), None)?;
            }
        }
        for (stack, index, layer, _) in model.blocks() {
            self.register_block(slots, &BlockNames::new(stack, index, layer))?;
        }
        for stack in &model.stacks {
            self.stack_norm(slots, stack, "norm", &stack.final_norm)?;
        }
        if head.uses_vocabulary() && !model.head.tied {
            self.base(slots, "head", None, &[(model.head.name, vocab, normal)], Some(d), None)?;
        }
        for weight in head.weights() {
            // A new head learns whatever the method, unless it is frozen by name.
            let trainable = !self.recipe.freeze.iter().any(|pattern| matches(pattern, &weight.name));
            let shape = Shape::new(&[weight.rows, d]);
            let tensors = vec![HfTensor { name: weight.name.clone(), first_row: 0, shape, init: normal }];
            let (name, kind) = (head_slot(&weight.name), ParameterKind::Head);
            self.add(slots, New { name, layer: None, tensors, kind, trainable, format: None })?;
        }
        Ok(())
    }

    /// A norm beside the blocks; its name is a whole Hugging Face name.
    fn stack_norm(&mut self, slots: &mut SlotTable, stack: &Stack, own: &str, norm: &Norm) -> Result<(), ModelError> {
        if !norm.weight {
            return Ok(());
        }
        let tensor = format!("{}.weight", norm.name);
        let name = format!("{}{own}", stack.prefix);
        self.base(slots, &name, None, &[(&tensor, self.model.hidden_size, norm_init(norm))], None, None)
    }

    fn register_block(&mut self, slots: &mut SlotTable, names: &BlockNames) -> Result<(), ModelError> {
        let (d, layer) = (self.model.hidden_size, Some(names.layer));
        let model = self.model;
        let (_, _, _, block) = model.blocks().nth(names.layer as usize).expect("one of the model's blocks");
        let before = block.branches.iter().map(|branch| &branch.norm);
        let behind = block.branches.iter().filter_map(|branch| branch.out_norm.as_ref());
        for norm in before.chain(behind).filter(|norm| norm.weight) {
            let tensor = format!("{}.{}.weight", names.hf, norm.name);
            let name = format!("{}.{}", names.own, norm.name);
            self.base(slots, &name, layer, &[(&tensor, d, norm_init(norm))], None, None)?;
        }
        for module in block.branches.iter().filter_map(|branch| branch.module.learned_qk_norm()) {
            for norm in ["q_norm", "k_norm"] {
                let tensor = format!("{}.{}.{norm}.weight", names.hf, module.input.module);
                let own = format!("{}.{norm}", names.own);
                self.base(slots, &own, layer, &[(&tensor, module.heads.head_dim, Init::Ones)], None, None)?;
            }
        }
        for projection in block.branches.iter().flat_map(|branch| branch.module.projections()) {
            self.register_projection(slots, names, projection)?;
        }
        Ok(())
    }

    fn register_projection(
        &mut self,
        slots: &mut SlotTable,
        names: &BlockNames,
        projection: &Projection,
    ) -> Result<(), ModelError> {
        let hf = |layer: &str, kind: &str| format!("{}.{}.{layer}.{kind}", names.hf, projection.module);
        let prefix = format!("{}.{}", names.own, projection.name);
        let fused = self.is_fused(names, projection);
        for (kind, cols, format) in [("weight", Some(projection.in_features), self.recipe.base), ("bias", None, None)] {
            if kind == "bias" && !projection.bias {
                continue;
            }
            let init = |index| match kind {
                "bias" => Init::Zeros,
                _ => Init::Normal { std: *projection.stds.get(index).unwrap_or(&self.model.initializer_range) },
            };
            let layers = projection.layers.iter().enumerate();
            let tensors: Vec<(String, usize, Init)> =
                layers.map(|(index, (layer, rows))| (hf(layer, kind), *rows, init(index))).collect();
            let tensors: Vec<(&str, usize, Init)> =
                tensors.iter().map(|(name, rows, init)| (name.as_str(), *rows, *init)).collect();
            let at = Some(names.layer);
            if fused {
                self.base(slots, &format!("{prefix}.{kind}"), at, &tensors, cols, format)?;
                continue;
            }
            for (tensor, (layer, _)) in tensors.iter().zip(&projection.layers) {
                self.base(slots, &format!("{prefix}.{layer}.{kind}"), at, &[*tensor], cols, format)?;
            }
        }
        self.register_adapters(slots, names, projection)
    }

    /// The adapters of a projection's layers lie together: their first matrices one below the other, which makes one
    /// product of all that read the input, and so do their second ones.
    fn register_adapters(
        &mut self,
        slots: &mut SlotTable,
        names: &BlockNames,
        projection: &Projection,
    ) -> Result<(), ModelError> {
        let Some(lora) = &self.recipe.lora else { return Ok(()) };
        let adapted = adapted(projection, lora);
        if adapted.is_empty() {
            return Ok(());
        }
        // Kaiming uniform with a = √5, as PEFT draws A; B starts at zero so that training starts from the base.
        let bound = 1.0 / (projection.in_features as f32).sqrt();
        let r = lora.r;
        for (side, init) in [("lora_A", Init::Uniform { bound }), ("lora_B", Init::Zeros)] {
            let mut first_row = 0;
            let mut tensors = Vec::new();
            for (layer, columns) in &adapted {
                let shape = if side == "lora_A" { [r, projection.in_features] } else { [columns.len, r] };
                let name = format!("base_model.model.{}.{}.{layer}.{side}.weight", names.hf, projection.module);
                tensors.push(HfTensor { name, first_row, shape: Shape::new(&shape), init });
                first_row += shape[0];
            }
            let name = format!("{}.{}.{side}", names.own, projection.name);
            let (layer, kind) = (Some(names.layer), ParameterKind::Adapter);
            self.add(slots, New { name, layer, tensors, kind, trainable: true, format: None })?;
        }
        Ok(())
    }

    /// Registers a parameter of the base model, made of Hugging Face tensors stacked by rows.
    fn base(
        &mut self,
        slots: &mut SlotTable,
        name: &str,
        layer: Option<u32>,
        stacked: &[(&str, usize, Init)],
        cols: Option<usize>,
        format: Option<WeightFormat>,
    ) -> Result<(), ModelError> {
        let mut first_row = 0;
        let mut tensors = Vec::new();
        for (tensor, rows, init) in stacked {
            let shape = cols.map_or_else(|| Shape::new(&[*rows]), |c| Shape::new(&[*rows, c]));
            tensors.push(HfTensor { name: (*tensor).to_owned(), first_row, shape, init: *init });
            first_row += rows;
        }
        let trainable = self.trains(stacked[0].0);
        let kind = ParameterKind::Base;
        self.add(slots, New { name: name.to_owned(), layer, tensors, kind, trainable, format })
    }

    fn add(&mut self, slots: &mut SlotTable, new: New) -> Result<(), ModelError> {
        let New { name, layer, tensors, kind, trainable, format } = new;
        let rows: usize = tensors.iter().map(|t| t.shape.rows()).sum();
        let first = tensors[0].shape;
        let shape = if first.rank() == 1 { Shape::new(&[rows]) } else { Shape::new(&[rows, first.cols()]) };
        // Beside adapters, the head is one of the few things that are trained and saved.
        let small = kind == ParameterKind::Adapter || (kind == ParameterKind::Head && self.recipe.lora.is_some());
        let role = if small { Role::Adapter } else { Role::Weight };
        let storage = self.storage(&tensors, format.filter(|_| !trainable));
        let slot = slots.add(Slot { name: name.clone(), shape, storage, role, extent: Extent::Fixed, layer })?;
        let group = self.recipe.group_of(&tensors[0].name, &shape);
        self.by_name.insert(name.clone(), self.parameters.len());
        self.parameters.push(Parameter { name, slot, shape, kind, trainable, group, tensors });
        Ok(())
    }

    /// In few bits if every tensor can be.
    fn storage(&self, tensors: &[HfTensor], format: Option<WeightFormat>) -> Storage {
        let matrices: Vec<Shape> = tensors.iter().map(|tensor| tensor.shape).collect();
        let few_bits = format.and_then(|format| format.storage(self.recipe.compute, &matrices));
        few_bits.unwrap_or(self.recipe.compute.into())
    }

    fn trains(&self, hf_name: &str) -> bool {
        self.recipe.lora.is_none() && !self.recipe.freeze.iter().any(|p| matches(p, hf_name))
    }

    /// Layers are stored together unless some of them are frozen, or trained by other settings, and others are not.
    fn is_fused(&self, names: &BlockNames, projection: &Projection) -> bool {
        let treated = |layer: &str, kind: &str| {
            let name = format!("{}.{}.{layer}.{kind}", names.hf, projection.module);
            let shape = Shape::new(if kind == "weight" { &[1, 1] } else { &[1] });
            (self.trains(&name), self.recipe.group_of(&name, &shape))
        };
        let first = projection.layers[0].0;
        let alike = |layer: &str, kind: &str| treated(layer, kind) == treated(first, kind);
        projection.layers.iter().all(|(layer, _)| alike(layer, "weight") && alike(layer, "bias"))
    }

    fn check_patterns(&self) -> Result<(), ModelError> {
        let names = || self.parameters.iter().flat_map(|p| &p.tensors).map(|t| t.name.as_str());
        let unused = |patterns: &[String]| patterns.iter().find(|p| !names().any(|n| matches(p, n))).cloned();
        if let Some(unused) = unused(&self.recipe.freeze) {
            return Err(ModelError::FreezePattern(unused));
        }
        for group in &self.recipe.groups {
            if let Some(unused) = unused(&group.patterns) {
                return Err(ModelError::GroupPattern(unused));
            }
        }
        for (stack, index, layer, block) in self.model.blocks() {
            let names = BlockNames::new(stack, index, layer);
            for module in block.branches.iter().filter_map(|branch| branch.module.learned_qk_norm()) {
                let treated = |norm: &str| {
                    let name = format!("{}.{}.{norm}.weight", names.hf, module.input.module);
                    (self.trains(&name), self.recipe.group_of(&name, &Shape::new(&[1])))
                };
                if treated("q_norm") != treated("k_norm") {
                    return Err(ModelError::Method(format!(
                        "layer {index}: q_norm and k_norm can only be frozen together; freeze `*.q_norm*` and `*.k_norm*` both"
                    )));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn slot(&self, name: &str) -> Option<SlotId> {
        self.by_name.get(name).map(|&i| self.parameters[i].slot)
    }

    /// A parameter's place among all; makes the dropout of one projection's adapters different from every other's.
    pub(crate) fn position(&self, name: &str) -> usize {
        self.by_name[name]
    }
}

/// What a weight of the head is called here: `score` for `score.weight`.
pub(crate) fn head_slot(hf_name: &str) -> String {
    hf_name.strip_suffix(".weight").unwrap_or(hf_name).to_owned()
}

/// A norm begins with the factor one.
fn norm_init(norm: &Norm) -> Init {
    if norm.offset == 1.0 { Init::Zeros } else { Init::Ones }
}
