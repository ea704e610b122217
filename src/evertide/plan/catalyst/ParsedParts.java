package evertide;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.IdentityHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.UUID;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.analysis.ExpressionWithUnresolvedIdentifier;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.types.Metadata;
import org.apache.spark.unsafe.types.CalendarInterval;
import org.apache.spark.unsafe.types.UTF8String;
import scala.Function2;
import scala.Product;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Finds the operators inside of an operator of a parsed plan. evertide.plan.catalyst.parsed says why, and compiles this
 * class with Spark's compiler for generated code. That compiler supports neither lambdas nor generics.
 */
public final class ParsedParts {
    /** Values of these classes contain no operator. */
    private static final Class[] PLAIN = {
        String.class, Number.class, Boolean.class, Character.class, Enum.class, UUID.class, DataType.class,
        Metadata.class, Literal.class, InternalRow.class, UTF8String.class, CalendarInterval.class, Decimal.class,
        scala.Enumeration.Value.class
    };
    private static final Object ANY_NAME = CollectionConverters.asScala(Arrays.asList(new Object[] {"x"})).toSeq();

    /**
     * The operators, children first, and the class name of each value that is neither plain nor can be looked into.
     */
    public List find(LogicalPlan plan) {
        List children = new ArrayList(CollectionConverters.asJava(plan.children()));
        Set seen = Collections.newSetFromMap(new IdentityHashMap());
        seen.addAll(children);
        List found = new ArrayList(children);
        ArrayDeque open = new ArrayDeque();
        push(open, parts(plan));
        while (!open.isEmpty()) {
            Object value = open.pop();
            if (!seen.add(value) || isPlain(value)) {
                continue;
            }
            List parts = value instanceof LogicalPlan ? null : parts(value);
            if (parts != null) {
                push(open, parts);
            } else {
                found.add(value instanceof LogicalPlan ? value : value.getClass().getName());
            }
        }
        return found;
    }

    private static void push(ArrayDeque open, List parts) {
        for (int at = parts.size() - 1; at >= 0; at--) {
            if (parts.get(at) != null) {
                open.push(parts.get(at));
            }
        }
    }

    private static boolean isPlain(Object value) {
        for (int at = 0; at < PLAIN.length; at++) {
            if (PLAIN[at].isInstance(value)) {
                return true;
            }
        }
        return value.getClass().isArray() && value.getClass().getComponentType().isPrimitive();
    }

    /** What a value consists of; null if that is not known. */
    private static List parts(Object value) {
        if (value instanceof ExpressionWithUnresolvedIdentifier) {
            return built((ExpressionWithUnresolvedIdentifier) value);
        }
        if (value instanceof scala.collection.Iterable) {
            return new ArrayList(CollectionConverters.asJavaCollection((scala.collection.Iterable) value));
        }
        if (value instanceof Product) {
            List found = new ArrayList();
            for (int at = 0; at < ((Product) value).productArity(); at++) {
                found.add(((Product) value).productElement(at));
            }
            return found;
        }
        if (value instanceof Map) {
            List found = new ArrayList(((Map) value).keySet());
            found.addAll(((Map) value).values());
            return found;
        }
        if (value instanceof Collection) {
            return new ArrayList((Collection) value);
        }
        return value instanceof Object[] ? Arrays.asList((Object[]) value) : null;
    }

    /** An IDENTIFIER clause builds an expression from a name; what it builds has the clause's FILTER and ORDER BY. */
    private static List built(ExpressionWithUnresolvedIdentifier clause) {
        List found = new ArrayList();
        found.add(clause.identifierExpr());
        found.add(((Function2) clause.exprBuilder()).apply(ANY_NAME, clause.otherExprs()));
        return found;
    }
}
