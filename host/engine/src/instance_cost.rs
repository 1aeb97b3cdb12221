//! The memory of a component's instances beside their memories and tables. The engine keeps globals, functions and imports of
//! each core instance in a context, and no limiter counts it: a million globals in each of 240 instances are gigabytes.

use std::iter::Sum;
use std::ops::Add;

use wasmparser::{
    ComponentAlias, ComponentExternalKind, ComponentInstance, ComponentOuterAliasKind, ComponentTypeRef, Encoding,
    Instance, Parser, Payload,
};

/// Bytes of an instance without anything in it.
const INSTANCE: u64 = 1 << 10;
/// Bytes of a global.
const GLOBAL: u64 = 16;
/// Bytes of a function that somebody may refer to, of an import, of a table or memory, about.
const ITEM: u64 = 40;
/// Components inside of one another; tools make two or three levels.
const DEPTH: usize = 32;

/// The cost of instantiating a component.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct InstanceCost {
    /// Core instances.
    pub(crate) instances: u64,
    /// Bytes of their contexts.
    pub(crate) bytes: u64,
    /// Instances of modules, and of components, that are not told by their index: each is taken for the largest there is.
    modules: u64,
    components: u64,
}

impl Add for InstanceCost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            instances: self.instances.saturating_add(other.instances),
            bytes: self.bytes.saturating_add(other.bytes),
            modules: self.modules.saturating_add(other.modules),
            components: self.components.saturating_add(other.components),
        }
    }
}

impl Sum for InstanceCost {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), Add::add)
    }
}

impl InstanceCost {
    /// Reads what a component instantiates. It is not validated: what makes no sense is for the compiler to refuse.
    ///
    /// # Errors
    /// If the bytes are no component.
    pub(crate) fn of(component: &[u8]) -> Result<Self, String> {
        let mut census = Census::default();
        for payload in Parser::new(0).parse_all(component) {
            census.take(payload.map_err(|error| error.to_string())?).map_err(|error| error.to_string())?;
        }
        census.total.map(|total| census.resolved(total)).ok_or_else(|| "it is a module and not a component".to_owned())
    }
}

#[derive(Debug)]
enum Frame {
    /// A core module, and the bytes of one instance of it.
    Module(u64),
    Component(Box<Indices>),
}

/// The index spaces of a component, as far as they are instantiated; `None` is not told.
#[derive(Debug, Default)]
struct Indices {
    modules: Vec<Option<u64>>,
    components: Vec<Option<InstanceCost>>,
    cost: InstanceCost,
}

#[derive(Debug, Default)]
struct Census {
    open: Vec<Frame>,
    largest_module: u64,
    largest_component: InstanceCost,
    total: Option<InstanceCost>,
}

#[derive(Debug, thiserror::Error)]
enum CensusError {
    #[error(transparent)]
    Binary(#[from] wasmparser::BinaryReaderError),
    #[error("more than {DEPTH} components inside of one another")]
    TooDeep,
}

impl Census {
    fn take(&mut self, payload: Payload<'_>) -> Result<(), CensusError> {
        match payload {
            Payload::Version { encoding, .. } => self.begin(encoding)?,
            Payload::End(_) => self.end(),
            Payload::GlobalSection(globals) => self.add(u64::from(globals.count()) * GLOBAL),
            Payload::FunctionSection(functions) => self.add(u64::from(functions.count()) * ITEM),
            Payload::ImportSection(imports) => self.add(imports.into_imports().count() as u64 * ITEM),
            Payload::TableSection(tables) => self.add(u64::from(tables.count()) * ITEM),
            Payload::MemorySection(memories) => self.add(u64::from(memories.count()) * ITEM),
            Payload::TypeSection(types) => self.add(u64::from(types.count()) * 8),
            Payload::InstanceSection(instances) => {
                for instance in instances {
                    self.instantiate(&instance?);
                }
            }
            Payload::ComponentInstanceSection(instances) => {
                for instance in instances {
                    self.instantiate_component(&instance?);
                }
            }
            Payload::ComponentAliasSection(aliases) => {
                for alias in aliases {
                    self.alias(&alias?);
                }
            }
            Payload::ComponentImportSection(imports) => {
                for import in imports {
                    self.import(import?.ty);
                }
            }
            Payload::ComponentExportSection(exports) => {
                for export in exports {
                    self.unknown(export?.kind);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn begin(&mut self, encoding: Encoding) -> Result<(), CensusError> {
        if self.open.len() >= DEPTH {
            return Err(CensusError::TooDeep);
        }
        self.open.push(match encoding {
            Encoding::Module => Frame::Module(INSTANCE),
            Encoding::Component => Frame::Component(Box::default()),
        });
        Ok(())
    }

    fn end(&mut self) {
        let ended = self.open.pop();
        let above = match self.open.last_mut() {
            Some(Frame::Component(above)) => Some(above),
            _ => None,
        };
        match (ended, above) {
            (Some(Frame::Module(bytes)), above) => {
                self.largest_module = self.largest_module.max(bytes);
                if let Some(above) = above {
                    above.modules.push(Some(bytes));
                }
            }
            (Some(Frame::Component(ended)), Some(above)) => {
                above.components.push(Some(ended.cost));
                let (largest, cost) = (&mut self.largest_component, ended.cost);
                largest.instances = largest.instances.max(cost.instances);
                largest.bytes = largest.bytes.max(cost.bytes);
                largest.modules = largest.modules.max(cost.modules);
            }
            (Some(Frame::Component(ended)), None) => self.total = Some(ended.cost),
            (None, _) => {}
        }
    }

    /// With the largest there is in place of what is not told.
    fn resolved(&self, cost: InstanceCost) -> InstanceCost {
        let InstanceCost { instances, bytes, modules, .. } = self.largest_component;
        let (most, unknown) = (cost.components, cost.modules.saturating_add(modules.saturating_mul(cost.components)));
        InstanceCost {
            instances: cost.instances.saturating_add(instances.saturating_mul(most)),
            bytes: cost
                .bytes
                .saturating_add(bytes.saturating_mul(most))
                .saturating_add(self.largest_module.saturating_mul(unknown)),
            ..InstanceCost::default()
        }
    }

    /// Adds to the context of the module that is being read.
    fn add(&mut self, bytes: u64) {
        if let Some(Frame::Module(all)) = self.open.last_mut() {
            *all = all.saturating_add(bytes);
        }
    }

    fn component(&mut self) -> Option<&mut Indices> {
        match self.open.last_mut() {
            Some(Frame::Component(indices)) => Some(indices),
            _ => None,
        }
    }

    fn instantiate(&mut self, instance: &Instance<'_>) {
        let (Some(indices), Instance::Instantiate { module_index, .. }) = (self.component(), instance) else { return };
        let module = indices.modules.get(*module_index as usize).copied().flatten();
        let one = InstanceCost {
            instances: 1,
            bytes: module.unwrap_or_default(),
            modules: u64::from(module.is_none()),
            components: 0,
        };
        indices.cost = indices.cost + one;
    }

    fn instantiate_component(&mut self, instance: &ComponentInstance<'_>) {
        let (Some(indices), ComponentInstance::Instantiate { component_index, .. }) = (self.component(), instance)
        else {
            return;
        };
        let known = indices.components.get(*component_index as usize).copied().flatten();
        let unknown = InstanceCost { components: 1, ..InstanceCost::default() };
        indices.cost = indices.cost + known.unwrap_or(unknown);
    }

    fn alias(&mut self, alias: &ComponentAlias<'_>) {
        match alias {
            ComponentAlias::InstanceExport { kind, .. } => self.unknown(*kind),
            ComponentAlias::Outer { kind: ComponentOuterAliasKind::CoreModule, .. } => {
                self.unknown(ComponentExternalKind::Module);
            }
            ComponentAlias::Outer { kind: ComponentOuterAliasKind::Component, .. } => {
                self.unknown(ComponentExternalKind::Component);
            }
            _ => {}
        }
    }

    fn import(&mut self, import: ComponentTypeRef) {
        match import {
            ComponentTypeRef::Module(_) => self.unknown(ComponentExternalKind::Module),
            ComponentTypeRef::Component(_) => self.unknown(ComponentExternalKind::Component),
            _ => {}
        }
    }

    /// An index of something that is not told here.
    fn unknown(&mut self, kind: ComponentExternalKind) {
        let Some(indices) = self.component() else { return };
        match kind {
            ComponentExternalKind::Module => indices.modules.push(None),
            ComponentExternalKind::Component => indices.components.push(None),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use wasm_encoder::{
        Alias, ComponentBuilder, ComponentExportKind, ComponentOuterAliasKind, ConstExpr, GlobalSection, GlobalType,
        Module, ModuleArg, ValType,
    };

    use super::*;

    fn module(globals: usize) -> Module {
        let (mut module, mut section) = (Module::new(), GlobalSection::new());
        let global = GlobalType { val_type: ValType::I64, mutable: true, shared: false };
        for _ in 0..globals {
            section.global(global, &ConstExpr::i64_const(0));
        }
        module.section(&section);
        module
    }

    /// A component with so many instances of a module of so many globals.
    fn component(instances: usize, globals: usize) -> ComponentBuilder {
        let mut component = ComponentBuilder::default();
        let module = component.core_module(None, &module(globals));
        for _ in 0..instances {
            component.core_instantiate(None, module, Vec::<(&str, ModuleArg)>::new());
        }
        component
    }

    #[test]
    fn every_instance_of_a_module_counts() {
        let cost = InstanceCost::of(&component(3, 2).finish()).unwrap();
        assert_eq!((cost.instances, cost.bytes), (3, 3 * (INSTANCE + 2 * GLOBAL)));
    }

    #[test]
    fn nested_components_multiply_the_cost() {
        let mut outermost = ComponentBuilder::default();
        let inner = outermost.component(None, component(2, 5));
        let mut outer = ComponentBuilder::default();
        let kind = ComponentOuterAliasKind::Component;
        let alias = outer.alias(None, Alias::Outer { kind, count: 1, index: inner });
        let none = Vec::<(&str, ComponentExportKind, u32)>::new;
        outer.instantiate(None, alias, none());
        outer.instantiate(None, alias, none());
        let outer = outermost.component(None, outer);
        outermost.instantiate(None, inner, none());
        outermost.instantiate(None, outer, none());
        let cost = InstanceCost::of(&outermost.finish()).unwrap();
        assert_eq!((cost.instances, cost.bytes), (6, 6 * (INSTANCE + 5 * GLOBAL)));
    }

    #[test]
    fn invalid_components_have_no_cost() {
        assert!(InstanceCost::of(&module(1).finish()).unwrap_err().contains("a module"));
        assert!(InstanceCost::of(b"no").is_err());
        let deep = (0..DEPTH + 2).fold(ComponentBuilder::default(), |inner, _| {
            let mut outer = ComponentBuilder::default();
            outer.component(None, inner);
            outer
        });
        assert!(InstanceCost::of(&deep.finish()).unwrap_err().contains("inside of one another"));
    }
}
