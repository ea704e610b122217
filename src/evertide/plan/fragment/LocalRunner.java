package evertide;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.FileInputStream;
import java.io.FileOutputStream;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.spark.Dependency;
import org.apache.spark.NarrowDependency;
import org.apache.spark.Partition;
import org.apache.spark.SparkContext;
import org.apache.spark.TaskContext;
import org.apache.spark.TaskContext$;
import org.apache.spark.TaskContextImpl;
import org.apache.spark.executor.TaskMetrics;
import org.apache.spark.memory.MemoryManager;
import org.apache.spark.memory.TaskMemoryManager;
import org.apache.spark.memory.UnifiedMemoryManager;
import org.apache.spark.rdd.ParallelCollectionPartition;
import org.apache.spark.rdd.RDD;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.IsNotNull;
import org.apache.spark.sql.catalyst.expressions.LessThan;
import org.apache.spark.sql.catalyst.expressions.Literal$;
import org.apache.spark.sql.catalyst.expressions.MonotonicallyIncreasingID;
import org.apache.spark.sql.catalyst.expressions.Or;
import org.apache.spark.sql.catalyst.expressions.RaiseError;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection;
import org.apache.spark.sql.catalyst.expressions.UnsafeProjection$;
import org.apache.spark.sql.catalyst.optimizer.ConvertToLocalRelation$;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.Join;
import org.apache.spark.sql.catalyst.plans.logical.LocalRelation;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.plans.logical.Repartition;
import org.apache.spark.sql.catalyst.plans.logical.RepartitionByExpression;
import org.apache.spark.sql.catalyst.plans.logical.Union;
import org.apache.spark.sql.catalyst.plans.physical.SinglePartition$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.LogicalRDD;
import org.apache.spark.sql.execution.QueryExecution$;
import org.apache.spark.sql.execution.SparkPlan;
import org.apache.spark.sql.execution.arrow.ArrowConverters$;
import org.apache.spark.sql.types.StructType;
import scala.Option;
import scala.collection.immutable.ArraySeq$;
import scala.collection.immutable.Map$;
import scala.collection.immutable.Nil$;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.reflect.ClassTag;
import scala.reflect.ClassTag$;

/**
 * A fragment over few rows, from Arrow to Arrow in one call: see evertide.plan.fragment.local_runner, which compiles this with the
 * compiler that Spark has for its own generated code. That compiler knows no lambdas and no generics: hence the casts.
 */
public final class LocalRunner {
    /** Numbers that no task of Spark has. */
    private static final AtomicLong ATTEMPTS = new AtomicLong(1L << 40);
    /** Parts of the names of operators that do not stay in one partition of one process. */
    private static final String[] OTHERS = {"Exchange", "Broadcast", "Adaptive", "Python", "Pandas", "InMemory"};
    private static final ClassTag TAG = ClassTag$.MODULE$.apply(InternalRow.class);
    private static final String ZONE = "UTC";
    private static final long ALL = 1L << 31;
    /** What the error says that ends a run in which a join makes too many rows. */
    private static final String TOO_MANY = "evertide: a join makes more rows than one thread should";

    private final SparkSession session;
    private final LogicalPlan tree;
    private final int height;
    private final List marks;
    private final List outputs;
    private final List structs;
    private final List projections = new ArrayList();
    private final Seq minus;
    private final Seq plus;
    private final StructType struct;
    private final long rowsMadeMax;
    /** Of few rows: apart from that of tasks, whose class needs libraries that may be missing. */
    private final MemoryManager memory;
    private final Map known = new HashMap();

    /** Of each leaf: the id of the RDD that marks it in the tree, its attributes, and its type. */
    public LocalRunner(
            SparkSession session,
            LogicalPlan tree,
            int height,
            List marks,
            List outputs,
            List structs,
            Seq minus,
            Seq plus,
            StructType struct,
            long rowsMadeMax) {
        this.session = session;
        this.tree = tree;
        this.height = height;
        this.marks = marks;
        this.outputs = outputs;
        this.structs = structs;
        this.minus = minus;
        this.plus = plus;
        this.struct = struct;
        this.rowsMadeMax = rowsMadeMax;
        this.memory = UnifiedMemoryManager.apply(session.sparkContext().conf(), 1);
        for (int at = 0; at < structs.size(); at++) {
            this.projections.add(UnsafeProjection$.MODULE$.create((StructType) structs.get(at)));
        }
    }

    /**
     * Computes the terms of one file into another one, and says how: in place, here, or by a job; or that there are too
     * many rows for either.
     */
    public synchronized String run(String from, String to, boolean isRowWise, boolean isHere) throws Exception {
        Option before = SparkSession.getActiveSession();
        SparkSession.setActiveSession(this.session);
        try {
            return this.computed(from, to, isRowWise, isHere);
        } finally {
            if (before.isDefined()) {
                SparkSession.setActiveSession((SparkSession) before.get());
            } else {
                SparkSession.clearActiveSession();
            }
        }
    }

    private String computed(String from, String to, boolean isRowWise, boolean isHere) throws Exception {
        List signs = new ArrayList();
        List terms = this.read(from, signs);
        if (isRowWise) {
            List found = this.inPlace(signs, terms);
            if (found != null) {
                this.write(to, found);
                return "place";
            }
        }
        try {
            return this.joined(to, terms, signs, isHere);
        } catch (Exception error) {
            if (isTooMany(error)) {
                return "too many";
            }
            throw error;
        }
    }

    private String joined(String to, List terms, List signs, boolean isHere) throws Exception {
        if (isHere) {
            Prepared prepared = this.prepared(signs);
            if (prepared.rdd != null) {
                try {
                    prepared.hold(terms);
                    this.writeHere(to, prepared.rdd);
                    return "here";
                } catch (Exception error) {
                    if (isTooMany(error)) {
                        throw error;
                    }
                    this.known.remove(signs); // a job tells it better; and what failed is not used again
                } finally {
                    prepared.hold(null);
                }
            }
        }
        List all = new ArrayList();
        all.add(this.planned(this.locals(terms), signs).executeCollectIterator()._2());
        this.write(to, all);
        return "job";
    }

    private static boolean isTooMany(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (String.valueOf(cause.getMessage()).indexOf(TOO_MANY) >= 0) {
                return true;
            }
        }
        return false;
    }

    // Rows in.

    private List read(String from, List signs) throws Exception {
        List terms = new ArrayList();
        DataInputStream in = new DataInputStream(new BufferedInputStream(new FileInputStream(from)));
        try {
            int count = in.readInt();
            for (int number = 0; number < count; number++) {
                signs.add(Integer.valueOf(in.readInt()));
                List leaves = new ArrayList();
                for (int at = 0; at < this.marks.size(); at++) {
                    leaves.add(this.leaf(in, at));
                }
                terms.add(leaves);
            }
        } finally {
            in.close();
        }
        return terms;
    }

    private Object[] leaf(DataInputStream in, int at) throws Exception {
        List batches = new ArrayList();
        int count = in.readInt();
        for (int number = 0; number < count; number++) {
            byte[] batch = new byte[in.readInt()];
            in.readFully(batch);
            batches.add(batch);
        }
        scala.collection.Iterator rows = ArrowConverters$.MODULE$.fromBatchIterator(
                CollectionConverters.asScala(batches.iterator()),
                (StructType) this.structs.get(at), ZONE, false, false, null);
        UnsafeProjection projection = (UnsafeProjection) this.projections.get(at);
        List held = new ArrayList();
        while (rows.hasNext()) {
            held.add(projection.apply((InternalRow) rows.next()).copy());
        }
        return held.toArray();
    }

    /** The rows of all terms as relations of their own. */
    private List locals(List terms) {
        List found = new ArrayList();
        for (int number = 0; number < terms.size(); number++) {
            List leaves = new ArrayList();
            for (int at = 0; at < this.marks.size(); at++) {
                Seq rows = ArraySeq$.MODULE$.unsafeWrapArray((Object[]) ((List) terms.get(number)).get(at));
                leaves.add(new LocalRelation((Seq) this.outputs.get(at), rows, false, Option.empty()));
            }
            found.add(leaves);
        }
        return found;
    }

    /** A relation in one partition whose rows are those of the moment: a plan over it is made once, and runs often. */
    private static final class Held extends RDD {
        private final Partition[] partitions;
        private Object[] rows = new Object[0];

        Held(SparkContext spark, ClassTag tag) {
            super(spark, (Seq) Nil$.MODULE$, tag);
            this.partitions = new Partition[] {new ParallelCollectionPartition(0L, 0, (Seq) Nil$.MODULE$, tag)};
        }

        public Partition[] getPartitions() {
            return this.partitions;
        }

        public scala.collection.Iterator compute(Partition partition, TaskContext context) {
            return ArraySeq$.MODULE$.unsafeWrapArray(this.rows).iterator();
        }
    }

    /** A plan that is ready to run here; without an RDD if it is one for a job. */
    private static final class Prepared {
        private final List held = new ArrayList();
        private RDD rdd;

        void hold(List terms) {
            for (int number = 0; number < this.held.size(); number++) {
                List leaves = (List) this.held.get(number);
                for (int at = 0; at < leaves.size(); at++) {
                    ((Held) leaves.get(at)).rows =
                            terms == null ? new Object[0] : (Object[]) ((List) terms.get(number)).get(at);
                }
            }
        }
    }

    private Prepared prepared(List signs) {
        Prepared found = (Prepared) this.known.get(signs);
        if (found == null) {
            found = this.made(signs);
            this.known.put(signs, found);
        }
        return found;
    }

    private Prepared made(List signs) {
        Prepared made = new Prepared();
        List relations = new ArrayList();
        for (int number = 0; number < signs.size(); number++) {
            List leaves = new ArrayList();
            List held = new ArrayList();
            for (int at = 0; at < this.marks.size(); at++) {
                Held rows = new Held(this.session.sparkContext(), TAG);
                held.add(rows);
                Seq output = (Seq) this.outputs.get(at);
                LocalRelation few = new LocalRelation(output, (Seq) Nil$.MODULE$, false, Option.empty());
                leaves.add(new LogicalRDD(
                        output, rows, SinglePartition$.MODULE$, (Seq) Nil$.MODULE$, false, Option.empty(),
                        this.session, Option.apply(few.stats()), Option.empty(), false));
            }
            made.held.add(held);
            relations.add(leaves);
        }
        SparkPlan plan = this.planned(relations, signs);
        made.rdd = this.isForHere(plan) ? plan.execute() : null;
        return made;
    }

    // Plans.

    /**
     * With rows in the leaves' places, all in one partition: so that no exchange is left to plan. Of a union, and of a
     * join below a join, Spark does not see that it is, unless it is told.
     */
    private LogicalPlan bound(LogicalPlan tree, List leaves, boolean isPlanned, boolean isBelowJoin) {
        if (tree instanceof LogicalRDD) {
            int at = this.marks.indexOf(Integer.valueOf(((LogicalRDD) tree).rdd().id()));
            if (at >= 0) {
                LogicalPlan leaf = (LogicalPlan) leaves.get(at);
                return isPlanned && leaf instanceof LocalRelation ? new Repartition(1, false, leaf) : leaf;
            }
        }
        List below = new ArrayList();
        scala.collection.Iterator children = ((Seq) tree.children()).iterator();
        while (children.hasNext()) {
            below.add(this.bound(
                    (LogicalPlan) children.next(), leaves, isPlanned, isBelowJoin || tree instanceof Join));
        }
        if (below.isEmpty()) { // constants, which Spark would spread over partitions
            return isPlanned ? new Repartition(1, false, tree) : tree;
        }
        if (tree instanceof RepartitionByExpression) {
            return (LogicalPlan) below.get(0);
        }
        LogicalPlan made = (LogicalPlan) tree.withNewChildren(sequence(below));
        if (isPlanned && tree instanceof Join) {
            made = this.counted(made);
        }
        boolean isUnseen = tree instanceof Union || (isBelowJoin && tree instanceof Join);
        return isPlanned && isUnseen ? new Repartition(1, false, made) : made;
    }

    /** Few rows may make very many: the rows of a join are numbered, and the first number that is too high is an error. */
    private LogicalPlan counted(LogicalPlan join) {
        Expression isWithin = new LessThan(
                new MonotonicallyIncreasingID(), Literal$.MODULE$.apply(Long.valueOf(this.rowsMadeMax)));
        Expression fails = new IsNotNull(new RaiseError(Literal$.MODULE$.apply(TOO_MANY)));
        return new Filter(new Or(isWithin, fails), join);
    }

    private LogicalPlan signed(Object sign, List leaves, boolean isPlanned) {
        Seq columns = ((Integer) sign).intValue() < 0 ? this.minus : this.plus;
        return new Project(columns, this.bound(this.tree, leaves, isPlanned, false));
    }

    /** Catalyst computes maps and filters of local rows by itself, an operator at a time; null if there is more. */
    private List inPlace(List signs, List terms) {
        List found = new ArrayList();
        List relations = this.locals(terms);
        for (int number = 0; number < terms.size(); number++) {
            LogicalPlan plan = this.signed(signs.get(number), (List) relations.get(number), false);
            for (int step = 0; step <= this.height; step++) {
                plan = (LogicalPlan) ConvertToLocalRelation$.MODULE$.apply(plan);
            }
            if (!(plan instanceof LocalRelation)) {
                return null;
            }
            found.add(((LocalRelation) plan).data().iterator());
        }
        return found;
    }

    private SparkPlan planned(List relations, List signs) {
        List trees = new ArrayList();
        for (int number = 0; number < signs.size(); number++) {
            trees.add(this.signed(signs.get(number), (List) relations.get(number), true));
        }
        LogicalPlan whole = trees.size() == 1 ? (LogicalPlan) trees.get(0) : new Union(sequence(trees), false, false);
        return QueryExecution$.MODULE$.prepareExecutedPlan(this.session, whole);
    }

    private static Seq sequence(List values) {
        return ArraySeq$.MODULE$.unsafeWrapArray(values.toArray());
    }

    // Where it runs.

    /** Behind an exchange that no job has run Spark finds no rows, and says nothing: so this is looked at first. */
    public boolean isForHere(SparkPlan plan) {
        if (needsTasks(plan) || ((Seq) plan.subqueriesAll()).nonEmpty()) {
            return false;
        }
        return isNarrow(plan.execute());
    }

    private static boolean needsTasks(SparkPlan plan) {
        String name = plan.getClass().getSimpleName();
        for (int at = 0; at < OTHERS.length; at++) {
            if (name.indexOf(OTHERS[at]) >= 0) {
                return true;
            }
        }
        scala.collection.Iterator children = ((Seq) plan.children()).iterator();
        while (children.hasNext()) {
            if (needsTasks((SparkPlan) children.next())) {
                return true;
            }
        }
        return false;
    }

    /** Some operators have an exchange that their name does not tell: their rows change partitions. */
    private static boolean isNarrow(RDD rdd) {
        scala.collection.Iterator dependencies = ((Seq) rdd.dependencies()).iterator();
        while (dependencies.hasNext()) {
            Dependency dependency = (Dependency) dependencies.next();
            if (!(dependency instanceof NarrowDependency) || !isNarrow(dependency.rdd())) {
                return false;
            }
        }
        return true;
    }

    /** As a task would do it, with a task's context for as long as it takes. */
    private void writeHere(String to, RDD rdd) throws Exception {
        Partition[] partitions = rdd.partitions();
        DataOutputStream out = output(to);
        try {
            for (int at = 0; at < partitions.length; at++) {
                this.writePartition(out, rdd, partitions[at], partitions.length);
            }
        } finally {
            out.close();
        }
    }

    private void writePartition(DataOutputStream out, RDD rdd, Partition partition, int count) throws Exception {
        SparkContext spark = this.session.sparkContext();
        long attempt = ATTEMPTS.incrementAndGet();
        TaskMemoryManager memory = new TaskMemoryManager(this.memory, attempt);
        TaskContextImpl context = new TaskContextImpl(
                0, 0, partition.index(), attempt, 0, count, memory, spark.getLocalProperties(), null,
                TaskMetrics.empty(), null, Map$.MODULE$.empty());
        TaskContext$.MODULE$.setTaskContext(context);
        try {
            this.writeRows(out, rdd.iterator(partition, context));
        } finally {
            try {
                context.markTaskCompleted(Option.empty());
            } finally {
                memory.cleanUpAllAllocatedMemory();
                TaskContext$.MODULE$.unset();
            }
        }
    }

    /** What runs hold: nothing, when none is under way. */
    public long memoryUsed() {
        return this.memory.executionMemoryUsed();
    }

    // Rows out: each batch with its length before it.

    private void write(String to, List several) throws Exception {
        DataOutputStream out = output(to);
        try {
            for (int at = 0; at < several.size(); at++) {
                this.writeRows(out, (scala.collection.Iterator) several.get(at));
            }
        } finally {
            out.close();
        }
    }

    private void writeRows(DataOutputStream out, scala.collection.Iterator rows) throws Exception {
        scala.collection.Iterator batches = ArrowConverters$.MODULE$.toBatchWithSchemaIterator(
                rows, this.struct, ALL, ALL, ZONE, false, false);
        while (batches.hasNext()) {
            byte[] batch = (byte[]) batches.next();
            out.writeInt(batch.length);
            out.write(batch);
        }
    }

    private static DataOutputStream output(String to) throws Exception {
        return new DataOutputStream(new BufferedOutputStream(new FileOutputStream(to)));
    }
}
