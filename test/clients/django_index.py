"""The index class of sql/docs/recipes.md for Django, to which methods are added
that turn a change of some options into ALTER INDEX."""
from django.contrib.postgres.indexes import PostgresIndex

class GpuIvfPqIndex(PostgresIndex):
    suffix = "gpuivfpq"

    def __init__(self, *expressions, options=None, **kwargs):
        self.options = options or {}
        super().__init__(*expressions, **kwargs)

    def deconstruct(self):
        path, args, kwargs = super().deconstruct()
        if self.options:
            kwargs["options"] = self.options
        return path, args, kwargs

    def get_with_params(self):
        return [f"{name} = {value}" for name, value in self.options.items()]

    # Migrations drop and create an index that has changed.  The drop waits until
    # the create comes; both become one ALTER INDEX if only these options differ.

    at_once = ("probes", "candidates", "train_rows")   # no REINDEX needed

    def built_as(self):
        path, args, kwargs = self.deconstruct()
        options = {name: value for name, value in self.options.items() if name not in self.at_once}
        return path, args, {**kwargs, "options": options}

    def remove_sql(self, model, schema_editor, **kwargs):
        drop = super().remove_sql(model, schema_editor, **kwargs)
        drop.index = self
        schema_editor.deferred_sql.append(drop)
        return "SELECT"

    def create_sql(self, model, schema_editor, using="", **kwargs):
        for drop in schema_editor.deferred_sql:
            old = getattr(drop, "index", None)
            if old and old.name == self.name:
                schema_editor.deferred_sql.remove(drop)
                if old.built_as() == self.built_as():
                    options = ", ".join(f"{name} = {self.options[name]}"
                                        for name in self.at_once if name in self.options)
                    return (f"ALTER INDEX {schema_editor.quote_name(self.name)} "
                            f"RESET ({', '.join(self.at_once)})" + (options and f", SET ({options})"))
                schema_editor.execute(drop)
                break
        return super().create_sql(model, schema_editor, using, **kwargs)
